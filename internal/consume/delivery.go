package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/internal/meta"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// ErrLeaseLost is the cause of a message's context whose lease was lost. The root package exports
// and documents it.
var ErrLeaseLost = errors.New("lease lost")

// errClosing is the cause of a message's context that ends because the subscription closes.
var errClosing = fmt.Errorf("subscription: %w", queue.ErrClosed)

// errSettled is the cause of a message's context after its ack or nack.
var errSettled = errors.New("message is settled")

// Delivery is one hand-over of a message to the consumer. It is also the context of the message: it
// has the values of Subscribe's context, and the delivery itself, and it ends with the delivery.
type Delivery struct {
	inHand  InHand // the machine's; guarded by Subscription.mu
	of      *Subscription
	watched bool // handOut is woken when it is settled, even while it offers another; handOut's
	slow    bool // the Unmarshaler has it for long; guarded by Subscription.mu

	// These are set before the message is offered, and do not change. While it is slow, nobody but
	// the goroutine that is in the Unmarshaler may use them.
	msg  *message.Message
	uuid string     // of msg as it came; the consumer may change it there
	spec *meta.Spec // what the stored message says about its delivery; nil: nothing

	failure atomic.Pointer[string]  // the handler's error that KeepError kept, or nil
	verdict atomic.Pointer[verdict] // what a nack does, or nil: metadata, Backoff and limit say it
	tried   atomic.Bool             // Try was called
	ending  ending
}

// verdict is what a nack does, as the handler said.
type verdict struct {
	wait   time.Duration // until the next delivery, while this one does not count; 0: it was the last
	back   bool          // the message returns to its place at once, and this delivery does not count
	reason string        // why it was the last
}

// Info is what a consumer may know about a delivery. The root package exports and documents it.
type Info struct {
	ID           string
	DelayID      string
	Topic, Group string
	Number       int
	Redelivered  bool
	DueAt        time.Time
	Epoch        int64
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
		Epoch:       d.inHand.epoch,
	}
}

type deliveryKey struct{}

// FromContext returns the delivery that ctx is, or is derived from. It returns nil if there is
// none.
func FromContext(ctx context.Context) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	return d
}

// Of returns the delivery of msg, or nil. A copy that has the message's UUID may stand for it. A
// message that was made in a handler, with the context of the message handled, has no delivery.
func Of(msg *message.Message) *Delivery {
	d := FromContext(msg.Context())
	if d != nil && (d.msg == msg || d.uuid != "" && d.uuid == msg.UUID) {
		return d
	}
	return nil
}

// Try notes that the message's own work begins.
func (d *Delivery) Try() { d.tried.Store(true) }

// Tried tells whether that work has begun before, in this delivery or in an earlier one.
func (d *Delivery) Tried() bool { return d.tried.Load() || d.inHand.Delivered }

// FailWith keeps an error of the handler with the message, if it is nacked. "" is none.
func (d *Delivery) FailWith(text string) { d.failure.Store(&text) }

// DieWith makes a nack the last one. The reason is kept with the dead letter.
func (d *Delivery) DieWith(reason string) { d.verdict.Store(&verdict{reason: reason}) }

// Postpone has a nack bring the message again after wait, which is positive, and not count.
func (d *Delivery) Postpone(wait time.Duration) { d.verdict.Store(&verdict{wait: wait}) }

// GiveBack has a nack return the message to its place, and not count.
func (d *Delivery) GiveBack() { d.verdict.Store(&verdict{back: true}) }

// TakeBackPostpone undoes Postpone and GiveBack.
func (d *Delivery) TakeBackPostpone() {
	if v := d.verdict.Load(); v != nil && (v.wait > 0 || v.back) {
		d.verdict.CompareAndSwap(v, nil)
	}
}

// accept makes msg, which the Unmarshaler returned, the message of the delivery.
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
		if d.inHand.Requeued { // by an operator: it is delivered however late it is
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
	d.inHand.UUID = msg.UUID
}

// name returns the delay ID, or "".
func (d *Delivery) name() string {
	if d.spec == nil {
		return ""
	}
	return d.spec.Name.ID
}

// limit returns after how many deliveries the message is a dead letter; negative: never.
func (d *Delivery) limit() int {
	if d.spec == nil || d.spec.Limit == 0 {
		return d.of.Options.MaxDeliveries
	}
	return d.spec.Limit
}

// backoff returns the backoff that the message had when it came, or else that of Backoff.
func (d *Delivery) backoff() time.Duration {
	if d.spec == nil || !d.spec.Backoff.IsSet() {
		return d.of.Backoff(d.inHand.number())
	}
	return d.spec.Backoff.Wait(d.inHand.number())
}

// expiry returns when it is too late for the message, by the server's clock, and whether it is a
// dead letter then; otherwise it is dropped. The zero time is never.
func (d *Delivery) expiry() (end time.Time, thenDead bool) {
	if d.spec == nil {
		return time.Time{}, false
	}
	return d.spec.Expiry.From(d.inHand.Due), d.spec.Expiry.Dead
}

// interrupted reports whether the context has ended because the subscription closes.
func (d *Delivery) interrupted() bool {
	d.ending.mu.Lock()
	defer d.ending.mu.Unlock()
	return d.ending.cause == errClosing
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

// Deadline is context.Context's. There is none, because leases are extended.
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

// Value is context.Context's. The context package asks by keys of its own for the context that
// ends, and for the cause.
func (d *Delivery) Value(key any) any {
	if key == (deliveryKey{}) {
		return d
	}
	if ctx := d.ending.known(d.of.values); ctx != nil {
		return ctx.Value(key)
	}
	return d.of.values.Value(key)
}

// String is what is printed of a context. It reads no field that is guarded by a lock.
func (d *Delivery) String() string { return "redisdelay.Delivery(" + d.inHand.ID + ")" }

// ending is the end of a delivery, for its context. Most handlers never look whether their context
// has ended, so a context that can end is made for the first one who looks.
type ending struct {
	mu     sync.Mutex
	cause  error           // nil: the delivery has not ended
	ctx    context.Context // nil: nobody has looked
	cancel context.CancelCauseFunc
}

// end ends the delivery. The first cause counts.
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
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(values)
		if e.cause != nil {
			e.cancel(e.cause)
		}
	}
	return e.ctx
}

// known returns that context if somebody has looked, or the delivery has ended. Otherwise it
// returns nil.
func (e *ending) known(values context.Context) context.Context {
	e.mu.Lock()
	nobody := e.cause == nil && e.ctx == nil
	e.mu.Unlock()
	if nobody {
		return nil
	}
	return e.context(values)
}
