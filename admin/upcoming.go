package admin

import (
	"context"
	"fmt"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Load says which spans of time Upcoming is to count.
type Load struct {
	// From is where the first begins; zero: now, by the server's clock.
	From time.Time

	// Width is how long each is, rounded up to the millisecond. Required.
	Width time.Duration

	// Buckets is how many there are, from 1 to 1,000. Required.
	Buckets int

	// Group is whose retries are counted. Default redisdelay.DefaultConsumerGroup.
	Group string
}

// Bucket is a span of time, and how many messages fall due in it.
type Bucket struct {
	From, Until time.Time // not before the one, and before the other
	Pending     int       // messages whose first delivery it is
	Retries     int       // of one group
}

// Upcoming counts exactly how many messages fall due in each of some spans of time, in one step that costs
// little however many there are. Errors wrap ErrNotFound or ErrInvalidArgument, or come from ctx or Redis.
func (a *Admin) Upcoming(ctx context.Context, topic string, load Load) ([]Bucket, error) {
	t, err := a.topic(ctx, topic, queue.Foreseeing)
	switch {
	case err != nil:
	case load.Width <= 0 || load.Width > redisdelay.MaxDelay:
		err = fmt.Errorf("%w: Width is %v: want up to %v", ErrInvalidArgument, load.Width, redisdelay.MaxDelay)
	case load.Buckets < 1 || load.Buckets > 1000:
		err = fmt.Errorf("%w: Buckets is %d: want from 1 to 1000", ErrInvalidArgument, load.Buckets)
	}
	if err != nil {
		return nil, fmt.Errorf("upcoming: %w", err)
	}
	counted, err := t.Upcoming(ctx, groupName(load.Group), load.From, load.Width, load.Buckets)
	if err != nil {
		return nil, fmt.Errorf("upcoming: %w", err)
	}
	buckets := make([]Bucket, len(counted))
	for i, c := range counted {
		buckets[i] = Bucket{From: c.From, Pending: c.Pending, Retries: c.Retries}
		if i > 0 {
			buckets[i-1].Until = c.From
		}
	}
	last := &buckets[len(buckets)-1]
	last.Until = last.From.Add((load.Width + time.Millisecond - 1).Truncate(time.Millisecond))
	return buckets, nil
}
