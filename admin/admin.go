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
	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Config configures an Admin.
type Config struct {
	// Client is the connection to Redis, required. It stays the caller's. It is of the same kinds as
	// redisdelay.PublisherConfig.Client.
	Client redis.UniversalClient

	// KeyPrefix is what all keys in Redis begin with, the same as the publishers'. Default
	// redisdelay.DefaultKeyPrefix.
	KeyPrefix string

	// Unmarshaler turns bytes into messages, so that their metadata and payload can be shown. Default
	// redisdelay.BinaryMarshaler{}. What it refuses is tried as a message for a Redis Stream.
	Unmarshaler redisdelay.Unmarshaler

	// Marshaler is for MoveDead, which takes the delay ID and the expiry off what it moves: the other half of
	// the Unmarshaler, and of those of the subscribers of the topic that it moves to. Default the Unmarshaler,
	// if it is a Marshaler too, else redisdelay.BinaryMarshaler{}.
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

// Validate reports every fault of the configuration at once. New calls it.
func (c Config) Validate() error {
	return errors.Join(
		invalid("Client", queue.CheckClient(c.Client)),
		invalid("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
	)
}

func invalid(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s %w", ErrInvalidConfig, field, err)
}

// Admin looks after topics. It is safe for concurrent use, and there is nothing to close.
type Admin struct {
	config  Config
	client  *queue.Client
	permits queue.Permits
}

// New returns an Admin. It does not talk to Redis yet.
func New(config Config) (*Admin, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	return &Admin{config: config, client: queue.MustClient(config.Client)}, nil
}

// topic returns a handle on a topic for some work, or why there can be none, such as a permission that is lacking.
func (a *Admin) topic(ctx context.Context, name string, work queue.Work) (*operate.Topic, error) {
	t, err := a.handle(name)
	if err != nil {
		return nil, err
	}
	if _, err := a.permits.Try(ctx, t.Topic, work); err != nil {
		return nil, err
	}
	return t, nil
}

// handle is topic without a try of what is permitted.
func (a *Admin) handle(name string) (*operate.Topic, error) {
	if err := queue.CheckTopic(name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	}
	return operate.NewTopic(a.client, a.config.KeyPrefix, name), nil
}

// groupName is the name of a group, "" that of redisdelay.DefaultConsumerGroup.
func groupName(group string) string { return cmp.Or(group, redisdelay.DefaultConsumerGroup) }

// Topics returns names of topics, about limit of them (default 100), and where the next ones begin. The first
// call takes the cursor ""; an empty next says that there are no more. Topics that come or go meanwhile may
// be there or not.
func (a *Admin) Topics(ctx context.Context, cursor string, limit int) (topics []string, next string, err error) {
	from := uint64(0)
	if cursor != "" {
		if from, err = strconv.ParseUint(cursor, 10, 64); err != nil {
			return nil, "", fmt.Errorf("%w: %q is no cursor of Topics", ErrInvalidArgument, cursor)
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

// When is a due time: see In and At. The zero value is now.
type When struct {
	due queue.Due
	err error
}

// In is due a while after Redis hears of it, rounded up to the millisecond; at most redisdelay.MaxDelay.
func In(d time.Duration) When {
	if d < 0 || d > redisdelay.MaxDelay {
		return When{err: fmt.Errorf("%w: in %v: want from 0 to %v", ErrInvalidArgument, d, redisdelay.MaxDelay)}
	}
	return When{due: queue.In(d)}
}

// At is due at an instant by the clock of the Redis server, rounded up to the millisecond. What is past is
// now; what is further than redisdelay.MaxDelay ahead is refused.
func At(t time.Time) When {
	if t.After(time.Now().Add(redisdelay.MaxDelay)) {
		return When{err: fmt.Errorf("%w: at %v: want at most %v ahead", ErrInvalidArgument, t, redisdelay.MaxDelay)}
	}
	return When{due: queue.At(t)}
}

// Ref names a message: see ByID and ByDelayID.
type Ref struct{ ref operate.Ref }

// ByID names a message by its own ID, the same in all groups: Delivery.ID.
func ByID(id string) Ref { return Ref{operate.Ref{ID: id}} }

// ByDelayID names the message that has a delay ID: while it waits for its due time, and for its window after
// that.
func ByDelayID(delayID string) Ref { return Ref{operate.Ref{DelayID: delayID}} }

// String says what it names.
func (r Ref) String() string { return r.ref.String() }

func (r Ref) check() error {
	if r.ref == (operate.Ref{}) {
		return fmt.Errorf("%w: the message has no name; use ByID or ByDelayID", ErrInvalidArgument)
	}
	return nil
}
