package periodic

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/consume"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// OverlapPolicy says what becomes of an occurrence that is delivered while the group still handles
// another one of its schedule.
type OverlapPolicy string

const (
	// OverlapAllow handles both at once.
	OverlapAllow OverlapPolicy = "allow"
	// OverlapSkip acks the later one without handling it, logs it, and counts it
	// (admin.GroupCounters.Skipped). One whose handler has failed, also in a try of Watermill's
	// Retry, or that was delivered to a process that died, is postponed instead until the other one
	// ends. It is handled before any later one then.
	OverlapSkip OverlapPolicy = "skip"
	// OverlapQueue postpones the later one until the other one ends. If several wait, any of them
	// is next, but one that was delivered before comes first.
	OverlapQueue OverlapPolicy = "queue"
)

// OverlapConfig configures Overlap.
type OverlapConfig struct {
	// Client is the connection to Redis. Required. It is of the same kinds as
	// redisdelay.SubscriberConfig.Client.
	Client redis.UniversalClient

	// KeyPrefix is the start of all keys in Redis. It must equal the Subscriber's. Default
	// redisdelay.DefaultKeyPrefix.
	KeyPrefix string

	// Policy says what becomes of an occurrence that overlaps another one. Default OverlapSkip.
	Policy OverlapPolicy

	// Lease is for how long an occurrence counts as handled after its process died. A handler may
	// run for longer, because the middleware extends the time. Default 30s, at least 1s.
	Lease time.Duration

	// Wait is after how long a postponed occurrence is tried again. Default 1s, at least 1ms.
	Wait time.Duration
}

// Validate reports all faults of the configuration at once. Errors wrap ErrInvalidConfig. Overlap
// calls it.
func (c OverlapConfig) Validate() error {
	errs := []error{field.Check("Client", servers.CheckClient(c.Client)), field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix))}
	switch c.Policy {
	case "", OverlapAllow, OverlapSkip, OverlapQueue:
	default:
		errs = append(errs, field.Invalid("Policy", "is %q; want %q, %q or %q", c.Policy, OverlapAllow, OverlapSkip, OverlapQueue))
	}
	if c.Lease != 0 && c.Lease < time.Second {
		errs = append(errs, field.Invalid("Lease", "is %v; it has to be at least 1s, or zero for the default", c.Lease))
	}
	if c.Wait != 0 && (c.Wait < time.Millisecond || c.Wait > redisdelay.MaxDelay) {
		errs = append(errs, field.Invalid("Wait", "is %v; it has to be from 1ms to %v, or zero for the default", c.Wait, redisdelay.MaxDelay))
	}
	return errors.Join(errs...)
}

// Overlap returns a middleware that keeps occurrences of one schedule from being handled at the
// same time, in all processes of a consumer group. It concerns messages of occurrences alone, and
// needs the redisdelay.Subscriber of this module. Each group decides for itself.
//
// An occurrence that is delivered again, because its process died, is no overlap with itself. While
// Redis does not answer, occurrences are postponed, and use up no delivery. Errors wrap
// ErrInvalidConfig. The handler gets an error that wraps redisdelay.ErrNotDelivered for a message
// that comes from no redisdelay.Subscriber. A nil logger logs nothing.
func Overlap(config OverlapConfig, logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	o := &overlap{OverlapConfig: config, client: servers.MustClient(config.Client)}
	o.KeyPrefix = cmp.Or(o.KeyPrefix, redisdelay.DefaultKeyPrefix)
	o.Policy = cmp.Or(o.Policy, OverlapSkip)
	o.Lease = cmp.Or(o.Lease, 30*time.Second)
	o.Wait = cmp.Or(o.Wait, time.Second)
	o.logger = guard.Logger(logger).With(watermill.LogFields{"component": "redisdelay.periodic"})
	return o.middleware, nil
}

type overlap struct {
	OverlapConfig
	client  *servers.Client
	permits rights.Permits
	logger  watermill.LoggerAdapter
}

var errOverlap = errors.New("another occurrence of the schedule is handled, or comes first")

func (o *overlap) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		occurrence, ok := FromMessage(msg)
		if !ok || o.Policy == OverlapAllow {
			return h(msg)
		}
		delivered := consume.FromContext(msg.Context())
		if delivered == nil {
			return nil, fmt.Errorf("overlap: %w", redisdelay.ErrNotDelivered)
		}
		delivered.TakeBackPostpone() // of an earlier try, by Watermill's Retry for instance
		delivery, isNew := delivered.Info(), !delivered.Tried()
		topic := queue.NewTopic(o.client, o.KeyPrefix, delivery.Topic)
		handling := topic.Handle(occurrence.Schedule, delivery.Group, occurrence.At, o.Lease)
		_, err := o.permits.Try(msg.Context(), topic, rights.Overlapping)
		free := false
		if err == nil {
			again := time.Duration(0)
			if !isNew {
				again = 2*o.Wait + time.Second // it comes again within this time
			}
			free, err = handling.Begin(msg.Context(), again, o.Policy == OverlapSkip)
		}
		fields := watermill.LogFields{"schedule": occurrence.Schedule, "topic": delivery.Topic, "group": delivery.Group, "occurrence": occurrence.At}
		switch {
		case err != nil:
			return nil, o.postpone(msg, err)
		case free:
			delivered.Try()
			defer o.keep(handling, fields)()
			return h(msg)
		case o.Policy == OverlapQueue || !isNew:
			return nil, o.postpone(msg, errOverlap)
		}
		o.logger.Info("Skipped an occurrence, because another one of its schedule is handled, or waits for a retry", fields)
		return nil, nil
	}
}

// postpone has the message come again, and returns the error for the router.
func (o *overlap) postpone(msg *message.Message, err error) error {
	return errors.Join(&redisdelay.PostponeError{Delay: o.Wait, Err: err}, redisdelay.Postpone(msg, o.Wait))
}

// keep extends a handling until the function that it returns ends it.
func (o *overlap) keep(handling *queue.Handling, fields watermill.LogFields) (end func()) {
	stop := handling.Keep(func(err error) {
		o.logger.Error("Another occurrence of the schedule may be handled now", err, fields)
	})
	return func() {
		if err := stop(); err != nil {
			o.logger.Error("Cannot tell that an occurrence was handled, so that its Lease has to pass", err, fields)
		}
	}
}
