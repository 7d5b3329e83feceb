package admin

import (
	"context"
	"fmt"
	"time"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
)

// Load sets the intervals that Upcoming counts.
type Load struct {
	// From is the start of the first interval. Zero means now, by the server's clock.
	From time.Time

	// Width is the length of each interval, rounded up to the millisecond. Required.
	Width time.Duration

	// Buckets is the number of intervals, from 1 to 1,000. Required.
	Buckets int

	// Group is the group whose retries are counted. Default redisdelay.DefaultConsumerGroup, if
	// the topic has that.
	Group string

	// Filter chooses the messages that are counted. Without one, all are, whatever their number.
	// With one, messages are read, at most Most of them, over all partitions. Then Upcoming
	// returns only the intervals that it could finish.
	Filter Filter

	// Most is how many messages are read with a Filter at most. Default DefaultMostUpcoming.
	Most int
}

// Bucket is an interval, and the number of messages that become due in it.
type Bucket struct {
	From     time.Time `json:"from"`     // From <= due < Until
	Until    time.Time `json:"until"`    // From <= due < Until
	Waiting  int       `json:"waiting"`  // first deliveries
	Retrying int       `json:"retrying"` // retries of the group
}

// Upcoming counts exactly how many messages become due in each interval, in one atomic step, or in
// one for each partition. The step is short whatever the number of messages. With a Filter it
// reads messages in many steps. Errors wrap ErrInvalidArgument for a wrong Load.
func (a *Admin) Upcoming(ctx context.Context, topic string, load Load) ([]Bucket, error) {
	left := load.most()
	return over(ctx, a, topic, func(plain string) ([]Bucket, error) {
		buckets, err := a.upcoming(ctx, plain, load)
		if err != nil {
			return nil, err
		}
		load.From = buckets[0].From // the other partitions count the same intervals
		if load.Filter.isZero() {
			return buckets, nil
		}
		if buckets, err = a.chosen(ctx, plain, load, buckets, &left); err != nil {
			return nil, fmt.Errorf("upcoming: %w", err)
		}
		if buckets == nil {
			buckets = []Bucket{}
		}
		return buckets, nil
	}, func(sum *[]Bucket, part []Bucket) {
		if *sum == nil {
			*sum = part
			return
		}
		*sum = (*sum)[:min(len(*sum), len(part))] // a part that was not finished
		for i, b := range part[:len(*sum)] {
			(*sum)[i].Waiting += b.Waiting
			(*sum)[i].Retrying += b.Retrying
		}
	})
}

func (a *Admin) upcoming(ctx context.Context, topic string, load Load) ([]Bucket, error) {
	t, err := a.topic(ctx, topic, rights.Foreseeing)
	switch {
	case err != nil:
	case load.Width <= 0 || load.Width > redisdelay.MaxDelay:
		err = fmt.Errorf("%w: Width is %v, want more than 0 and at most %v", ErrInvalidArgument, load.Width, redisdelay.MaxDelay)
	case load.Buckets < 1 || load.Buckets > 1000:
		err = fmt.Errorf("%w: Buckets is %d, want 1 to 1000", ErrInvalidArgument, load.Buckets)
	}
	if err == nil {
		err = t.Require(ctx, load.Group)
	}
	if err != nil {
		return nil, fmt.Errorf("upcoming: %w", err)
	}
	reply, err := t.Upcoming(ctx, groupName(load.Group), load.From, load.Width, load.Buckets)
	if err != nil {
		return nil, fmt.Errorf("upcoming: %w", err)
	}
	begins := reply.Time("begins")
	var buckets []Bucket
	for i, span := range reply.Each() {
		buckets = append(buckets, Bucket{From: bucketStart(begins, load.Width, i), Until: bucketStart(begins, load.Width, i+1),
			Waiting: span.Number("waiting"), Retrying: span.Number("retrying")})
	}
	return buckets, nil
}

// bucketStart returns when an interval begins. A Duration from the first one on might overflow.
func bucketStart(first time.Time, width time.Duration, number int) time.Time {
	return time.UnixMilli(first.UnixMilli() + int64(number)*queue.CeilMillis(width))
}
