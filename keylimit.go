package redisdelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// KeyLimitConfig configures KeyLimit.
type KeyLimitConfig struct {
	// Client is the connection to Redis. Required. It is of the same kinds as
	// SubscriberConfig.Client.
	Client redis.UniversalClient

	// KeyPrefix is the start of all keys in Redis. It must equal the Subscriber's. Default
	// DefaultKeyPrefix.
	KeyPrefix string

	// AtOnce is how many messages with one key are handled at the same time at most, in all
	// processes of a group. Required, at most 32: a message that has to wait asks for each place.
	AtOnce int

	// Key returns the key of a message, or "" if the message has no limit. It must be safe for
	// concurrent use. Default: the metadata "partition_key" (partition.KeyMetadata).
	Key func(msg *message.Message) string

	// Lease is for how long the place of a handler stays taken after its process died. A handler
	// may run for longer, because the middleware extends the time. Default 30s, at least 1s.
	Lease time.Duration

	// Wait is after how long a message that found no place is tried again. Default 1s, at least
	// 1ms.
	Wait time.Duration
}

// Validate reports all faults of the configuration at once. Errors wrap ErrInvalidConfig. KeyLimit
// calls it.
func (c KeyLimitConfig) Validate() error {
	errs := []error{field.Check("Client", servers.CheckClient(c.Client)), field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix))}
	if c.AtOnce < 1 || c.AtOnce > queue.MostPlaces {
		errs = append(errs, field.Invalid("AtOnce", "is %d; it has to be from 1 to %d", c.AtOnce, queue.MostPlaces))
	}
	if c.Lease != 0 && c.Lease < time.Second {
		errs = append(errs, field.Invalid("Lease", "is %v; it has to be at least 1s, or zero for the default", c.Lease))
	}
	if c.Wait != 0 && (c.Wait < time.Millisecond || c.Wait > MaxDelay) {
		errs = append(errs, field.Invalid("Wait", "is %v; it has to be from 1ms to %v, or zero for the default", c.Wait, MaxDelay))
	}
	return errors.Join(errs...)
}

// KeyLimit returns a middleware that lets at most AtOnce handlers of a group run at the same time
// with one key, in all processes. Messages with other keys pass. A message that finds no place is
// postponed by Wait, which uses up no delivery: see Postpone. The router gets an error that wraps a
// *PostponeError then.
//
//   - Messages with one key come in no order.
//   - A handler runs beside AtOnce others if Redis did not answer for Lease, so that its place was
//     given away. The middleware logs an error.
//   - When a process dies, its places stay taken for Lease. Messages with these keys have fewer
//     places until then.
//   - Groups and topics count apart, and so do the partitions of a topic. In a partitioned topic a
//     key is in one partition, except while the number of partitions changes.
//   - While Redis does not answer, messages with a key are postponed.
//
// A message waits by coming again. Where many messages have few keys, SubscriberConfig.AtOnce or
// partition.SubscriberConfig.PartitionMaxInFlight costs less. Put the middleware outside of those
// that retry. It needs the Subscriber of this module: for a message of another one, the handler's
// error wraps ErrNotDelivered. Errors of KeyLimit wrap ErrInvalidConfig. A nil logger logs nothing.
func KeyLimit(config KeyLimitConfig, logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	l := &keyLimit{KeyLimitConfig: config, client: servers.MustClient(config.Client)}
	l.KeyPrefix = cmp.Or(l.KeyPrefix, DefaultKeyPrefix)
	l.Lease = cmp.Or(l.Lease, 30*time.Second)
	l.Wait = cmp.Or(l.Wait, time.Second)
	if l.Key == nil {
		l.Key = func(msg *message.Message) string { return msg.Metadata[partitionKey] }
	}
	l.logger = guard.Logger(logger).With(watermill.LogFields{"component": "redisdelay.keylimit"})
	return l.middleware, nil
}

// partitionKey is partition.KeyMetadata.
const partitionKey = "partition_key"

type keyLimit struct {
	KeyLimitConfig
	client  *servers.Client
	permits rights.Permits
	logger  watermill.LoggerAdapter
}

var errNoPlace = errors.New("as many messages with its key as may be are handled")

func (l *keyLimit) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		key := l.Key(msg)
		if key == "" {
			return h(msg)
		}
		delivered := consume.FromContext(msg.Context())
		if delivered == nil {
			return nil, fmt.Errorf("key limit: %w", ErrNotDelivered)
		}
		delivered.TakeBackPostpone() // of an earlier try, by Watermill's Retry for instance
		place, err := l.take(msg.Context(), delivered.Info(), key)
		if err != nil {
			return nil, errors.Join(&PostponeError{Delay: l.Wait, Err: err}, Postpone(msg, l.Wait))
		}
		fields := watermill.LogFields{"topic": delivered.Info().Topic, "group": delivered.Info().Group, "key": key}
		end := place.Keep(func(err error) {
			l.logger.Error("More messages with this key than AtOnce may be handled now", err, fields)
		})
		defer func() {
			if err := end(); err != nil {
				l.logger.Error("Cannot give the place of a key back, so that its Lease has to pass", err, fields)
			}
		}()
		return h(msg)
	}
}

// take takes a place for the message with a key, or returns why there is none.
func (l *keyLimit) take(ctx context.Context, of consume.Info, key string) (*queue.Handling, error) {
	topic := queue.NewTopic(l.client, l.KeyPrefix, of.Topic)
	if _, err := l.permits.Try(ctx, topic, rights.Overlapping); err != nil {
		return nil, err
	}
	for _, place := range topic.Places(key, of.Group, of.ID, l.AtOnce, l.Lease) {
		free, err := place.Begin(ctx, 0, false)
		if err != nil {
			return nil, err
		}
		if free {
			return place, nil
		}
	}
	return nil, errNoPlace
}
