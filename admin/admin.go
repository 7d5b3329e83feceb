package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Config configures an Admin.
type Config struct {
	// Client is the connection to Redis. Required. The Admin never closes it. It is of the same
	// kinds as redisdelay.PublisherConfig.Client.
	Client redis.UniversalClient

	// KeyPrefix is the start of all keys in Redis. It must equal the publishers'. Default
	// redisdelay.DefaultKeyPrefix.
	KeyPrefix string

	// Unmarshaler turns bytes into messages, to show their metadata and payload. Default
	// redisdelay.BinaryMarshaler{}. Bytes that it refuses are tried as a message for a Redis
	// Stream.
	Unmarshaler redisdelay.Unmarshaler

	// Marshaler is used by MoveDead, which removes delay ID and expiry from messages. It must fit
	// the Unmarshaler, and the Unmarshalers of the target topic's subscribers. Default: the
	// Unmarshaler, if it is also a Marshaler, else redisdelay.BinaryMarshaler{}.
	Marshaler redisdelay.Marshaler
}

func (c *Config) setDefaults() {
	c.KeyPrefix = cmp.Or(c.KeyPrefix, redisdelay.DefaultKeyPrefix)
	if c.Unmarshaler == nil {
		c.Unmarshaler = redisdelay.BinaryMarshaler{}
	}
	if c.Marshaler == nil {
		both, ok := c.Unmarshaler.(redisdelay.MarshalerUnmarshaler)
		if !ok {
			both = redisdelay.BinaryMarshaler{}
		}
		c.Marshaler = both
	}
}

// Validate reports all faults of the configuration at once. Errors wrap ErrInvalidConfig. New calls
// it.
func (c Config) Validate() error {
	return errors.Join(
		field.Check("Client", servers.CheckClient(c.Client)),
		field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
	)
}

// Admin inspects and changes topics. It is safe for concurrent use, and needs no Close.
type Admin struct {
	config  Config
	client  *servers.Client
	permits rights.Permits
	names   partNames
	seen    seen
	largest largest
}

// New returns an Admin. It does not connect to Redis yet. Errors wrap ErrInvalidConfig.
func New(config Config) (*Admin, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Admin{config: config, client: servers.MustClient(config.Client), largest: largest{turn: make(chan struct{}, 1)}}, nil
}

// topic returns a handle on a topic. It fails if the Redis user lacks a permission for the work.
func (a *Admin) topic(ctx context.Context, name string, work rights.Work) (*operate.Topic, error) {
	t, err := a.handle(name)
	if err != nil {
		return nil, err
	}
	if _, err := a.permits.Try(ctx, t.Topic, work); err != nil {
		return nil, err
	}
	return t, nil
}

// handle returns a handle on a topic without a check of permissions.
func (a *Admin) handle(name string) (*operate.Topic, error) {
	if err := queue.CheckTopic(name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	}
	return operate.NewTopic(a.client, a.config.KeyPrefix, name), nil
}

// groupName returns the group, or redisdelay.DefaultConsumerGroup for "".
func groupName(group string) string { return cmp.Or(group, redisdelay.DefaultConsumerGroup) }

// Topics returns about limit names of plain topics (default 100), and the cursor of the next page.
// The first call takes the cursor "". An empty next means that there are no more. Topics that come
// or go between the calls may be included or not. Errors wrap ErrInvalidArgument for another
// cursor.
func (a *Admin) Topics(ctx context.Context, cursor string, limit int) (topics []string, next string, err error) {
	from := uint64(0)
	if cursor != "" {
		if from, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return nil, "", fmt.Errorf("%w: %q is not a cursor of Topics", ErrInvalidArgument, cursor)
		}
	}
	topics, from, err = queue.TopicsFrom(ctx, a.client, a.config.KeyPrefix, from, cmp.Or(max(limit, 0), 100))
	if err != nil {
		return nil, "", fmt.Errorf("list topics: %w", err)
	}
	if from != 0 {
		next = strconv.FormatUint(from, 10)
	}
	return topics, next, nil
}

// When is a due time, made by In or At. The zero value is now.
type When struct {
	due queue.Due
	err error
}

// In is due d after Redis receives it, rounded up to the millisecond. A negative d is in the past,
// and that is now, as with At. More than redisdelay.MaxDelay is refused.
func In(d time.Duration) When {
	if d > redisdelay.MaxDelay {
		return When{err: fmt.Errorf("%w: in %v: want at most %v", ErrInvalidArgument, d, redisdelay.MaxDelay)}
	}
	return When{due: queue.In(d)}
}

// At is due at t by the clock of the Redis server, rounded up to the millisecond. A time in the
// past is now, as with In. A time more than redisdelay.MaxDelay ahead is refused, as is one before
// the year 2000, such as the zero time, which was never set.
func At(t time.Time) When {
	if t.Before(queue.Earliest) {
		return When{err: fmt.Errorf("%w: at %v: want a time from the year 2000 on", ErrInvalidArgument, t)}
	}
	if t.After(time.Now().Add(redisdelay.MaxDelay)) {
		return When{err: fmt.Errorf("%w: at %v: want at most %v ahead", ErrInvalidArgument, t, redisdelay.MaxDelay)}
	}
	return When{due: queue.At(t)}
}

// Ref names a message. ByID and ByDelayID make one.
type Ref struct{ ref operate.Ref }

// ByID names a message by its ID (Delivery.ID), which is the same in all groups.
func ByID(id string) Ref { return Ref{operate.Ref{ID: id}} }

// ByDelayID names the message that has a delay ID. A message has it until its due time, and for its
// window after that.
func ByDelayID(delayID string) Ref { return Ref{operate.Ref{DelayID: delayID}} }

// String returns the ID or delay ID in readable form.
func (r Ref) String() string { return r.ref.String() }

func (r Ref) check() error {
	if r.ref == (operate.Ref{}) {
		return fmt.Errorf("%w: no message is named; use ByID or ByDelayID", ErrInvalidArgument)
	}
	return nil
}
