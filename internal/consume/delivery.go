package consume

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
)

// ErrLeaseLost is the cause of a message's context whose lease was lost. The root package exports and documents it.
var ErrLeaseLost = errors.New("lease lost")

// errSettled is the cause of a message's context after its ack or nack.
var errSettled = errors.New("message is settled")

// Delivery is one hand-over of a message to the consumer, and the context of the message: it has the values of Subscribe's context
// and the delivery, and ends with the delivery. Most handlers never look whether it has ended, so the context that can be seen to
// end is made for the first who looks.
type Delivery struct {
	inHand  InHand // the machine's, under the subscription's lock
	of      *Subscription
	watched bool // handOut is woken when it is settled, even while it offers another message; handOut's

	// What follows is set before the message is offered, and does not change.
	msg  *message.Message
	uuid string     // of msg as it came, since the consumer may change that
	spec *meta.Spec // what the stored message says of its delivery; nil: nothing

	failure atomic.Pointer[string] // the handler's error, if KeepError kept it
	last    atomic.Pointer[string] // why a nack is the last, if it is
	ending  ending
}

// Info is what the consumer may know of a delivery. The root package exports and documents it.
type Info struct {
	ID           string
	DelayID      string
	Topic, Group string
	Number       int
	Redelivered  bool
	DueAt        time.Time
}

// Info describes the delivery.
func (d *Delivery) Info() Info {
	return Info{
		ID:          d.inHand.ID,
		DelayID:     d.name(),
		Topic:       d.of.Topic.Name,
		Group:       d.of.group.Name,
		Number:      d.inHand.number(),
		Redelivered: d.inHand.Delivered,
		DueAt:       d.inHand.Due,
	}
}

type deliveryKey struct{}

// FromContext returns the delivery that ctx is the context of, or is derived from, or nil.
func FromContext(ctx context.Context) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	return d
}

// Of returns the delivery of msg, or nil. A message that was made while another was handled, with its context, has none.
func Of(msg *message.Message) *Delivery {
	// A copy of the message, which has its UUID, may stand for it. Messages without UUID cannot be told from copies.
	if d := FromContext(msg.Context()); d != nil && (d.msg == msg || d.uuid != "" && d.uuid == msg.UUID) {
		return d
	}
	return nil
}

// FailWith has an error of the handler kept with the message if it is nacked. "" is none.
func (d *Delivery) FailWith(text string) { d.failure.Store(&text) }

// DieWith makes a nack the last, for a reason that is kept with the dead letter.
func (d *Delivery) DieWith(reason string) { d.last.Store(&reason) }

// accept takes in the message that the Unmarshaler made. A stored message says how it is to be delivered.
func (d *Delivery) accept(msg *message.Message) {
	if msg.Acked() == nil { // it was not made by NewMessage, and could not be acked
		made := message.NewMessage(msg.UUID, msg.Payload)
		made.Metadata = msg.Metadata
		msg = made
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	if spec := meta.Take(msg.Metadata); spec != (meta.Spec{}) {
		if d.inHand.Requeued { // it is delivered however late it is
			spec.Expiry = meta.Expiry{}
		}
		kept := spec
		d.spec = &kept
	}
	if d.inHand.DelayedFor != "" {
		msg.Metadata.Set(delay.DelayedForKey, d.inHand.DelayedFor)
	}
	msg.SetContext(d)
	d.msg, d.uuid = msg, msg.UUID
}

// name is the delay ID, or "".
func (d *Delivery) name() string {
	if d.spec == nil {
		return ""
	}
	return d.spec.Name.ID
}

// limit is how often the message is delivered at most; negative: no limit.
func (d *Delivery) limit() int {
	if d.spec == nil || d.spec.Limit == 0 {
		return d.of.Options.MaxDeliveries
	}
	return d.spec.Limit
}

// backoff is how long the message waits after this delivery, by what it said as it came, or else by Backoff.
func (d *Delivery) backoff() time.Duration {
	if d.spec == nil || !d.spec.Backoff.IsSet() {
		return d.of.Backoff(d.inHand.number())
	}
	return d.spec.Backoff.Wait(d.inHand.number())
}

// expiry is when it is too late for the message, by the server's clock, and whether it is a dead letter then, or else dropped.
// The zero time is never.
func (d *Delivery) expiry() (end time.Time, thenDead bool) {
	if d.spec == nil {
		return time.Time{}, false
	}
	return d.spec.Expiry.From(d.inHand.Due), d.spec.Expiry.Dead
}

// decided reports whether the consumer has settled the message.
func (d *Delivery) decided() bool {
	select {
	case <-d.msg.Acked():
		return true
	case <-d.msg.Nacked():
		return true
	default:
		return false
	}
}

var _ context.Context = (*Delivery)(nil)

// Deadline is context.Context's. There is none: leases are extended.
func (d *Delivery) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done is context.Context's.
func (d *Delivery) Done() <-chan struct{} { return d.ending.context(d.of.values).Done() }

// Err is context.Context's.
func (d *Delivery) Err() error {
	if ctx := d.ending.known(d.of.values); ctx != nil {
		return ctx.Err()
	}
	return nil
}

// Value is context.Context's. The context package asks by keys of its own for the context that ends, and for the cause.
func (d *Delivery) Value(key any) any {
	if key == (deliveryKey{}) {
		return d
	}
	if ctx := d.ending.known(d.of.values); ctx != nil {
		return ctx.Value(key)
	}
	return d.of.values.Value(key)
}

// String is what is printed of a context. Other fields of a delivery may only be read under the lock.
func (d *Delivery) String() string { return "redisdelay.Delivery(" + d.inHand.ID + ")" }

// ending is the end of a delivery as its context shows it.
type ending struct {
	mu     sync.Mutex
	cause  error           // nil: it has not ended
	ctx    context.Context // nil: nobody has looked
	cancel context.CancelCauseFunc
}

// end ends the context. The first cause counts.
func (e *ending) end(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil {
		return
	}
	e.cause = cause
	if e.cancel != nil {
		e.cancel(cause)
	}
}

// context returns a context with these values that ends with the delivery.
func (e *ending) context(values context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.make(values)
}

// known returns that context if the delivery has ended or somebody has looked for it, and else nil.
func (e *ending) known(values context.Context) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil {
		return e.ctx
	}
	return e.make(values)
}

// make makes the context if there is none. e.mu is held.
func (e *ending) make(values context.Context) context.Context {
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(values)
		if e.cause != nil {
			e.cancel(e.cause)
		}
	}
	return e.ctx
}
