package consume

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

var errOver = errors.New("over")

type valueKey struct{}

// newDelivery returns a delivery of a message that the consumer has.
func newDelivery(t *testing.T) *Delivery {
	client := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	topic := queue.NewTopic(servers.MustClient(client), "p", "topic")
	d := &Delivery{of: &Subscription{
		Config: Config{Topic: topic},
		group:  topic.Group("group"),
		values: context.WithoutCancel(context.WithValue(t.Context(), valueKey{}, "value")),
	}}
	d.inHand.ID, d.inHand.lease = "an-id", &lease{epoch: 7}
	d.accept(message.NewMessage("uuid", nil))
	return d
}

func TestTheContextOfADelivery(t *testing.T) {
	t.Parallel()
	for when, end := range map[string]func(t *testing.T, d *Delivery){
		"nobody has looked": func(_ *testing.T, d *Delivery) { d.ending.end(errOver) },
		"somebody waits": func(t *testing.T, d *Delivery) {
			done := d.Done()
			require.Empty(t, done)
			require.NoError(t, d.Err())
			d.ending.end(errOver)
			<-done
		},
		"it ends twice": func(_ *testing.T, d *Delivery) {
			d.ending.end(errOver)
			d.ending.end(errSettled)
		},
	} {
		for what, first := range map[string]func(t *testing.T, d *Delivery){
			"whether it is done":  func(_ *testing.T, d *Delivery) { <-d.Done() },
			"for the error":       func(t *testing.T, d *Delivery) { require.Equal(t, context.Canceled, d.Err()) },
			"for the cause":       func(t *testing.T, d *Delivery) { require.Equal(t, errOver, context.Cause(d)) },
			"for a later context": func(t *testing.T, d *Delivery) { requireEnded(t, context.WithValue(d, valueKey{}, 1)) },
		} {
			t.Run(fmt.Sprintf("%s, asked %s first", when, what), func(t *testing.T) {
				d := newDelivery(t)
				require.NoError(t, d.Err())
				require.NoError(t, context.Cause(d))
				requireValues(t, d)
				require.Nil(t, d.ending.ctx, "nobody needs one yet")
				end(t, d)
				first(t, d)
				requireEnded(t, d)
				requireValues(t, d)
			})
		}
	}
}

func requireEnded(t *testing.T, ctx context.Context) {
	t.Helper()
	<-ctx.Done()
	derived, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, c := range []context.Context{ctx, derived} {
		require.Equal(t, context.Canceled, c.Err())
		require.Equal(t, errOver, context.Cause(c))
	}
}

func requireValues(t *testing.T, d *Delivery) {
	t.Helper()
	require.Equal(t, "value", d.Value(valueKey{}))
	require.Nil(t, d.Value("nothing"))
	_, limited := d.Deadline()
	require.False(t, limited)
	require.Equal(t, "redisdelay.Delivery(an-id)", fmt.Sprint(d))
	require.Equal(t, Info{ID: "an-id", Topic: "topic", Group: "group", Number: 1, Epoch: 7}, FromContext(context.WithValue(d, valueKey{}, 1)).Info())
}

// The context package ends what is derived from its own contexts without a goroutine for each.
func TestContextsDerivedFromADeliveryNeedNoGoroutines(t *testing.T) { // beside no other test, since goroutines are counted
	const many = 1000
	d := newDelivery(t)
	before := runtime.NumGoroutine()
	var derived [many]context.Context
	called := make(chan struct{}, many)
	for i := range derived {
		var cancel context.CancelFunc
		derived[i], cancel = context.WithTimeout(context.WithValue(d, valueKey{}, i), time.Hour)
		defer cancel()
		context.AfterFunc(derived[i], func() { called <- struct{}{} })
	}
	require.Less(t, runtime.NumGoroutine()-before, many/2)
	d.ending.end(errOver)
	for i, ctx := range derived {
		requireEnded(t, ctx)
		require.Equal(t, i, ctx.Value(valueKey{}))
		<-called
	}
}

func TestTheEndOfADeliveryIsSeenWheneverSomebodyLooks(t *testing.T) {
	t.Parallel()
	of := newDelivery(t).of
	for range 1000 {
		d := &Delivery{of: of}
		go d.ending.end(errSettled)
		<-d.Done()
		require.Equal(t, errSettled, context.Cause(d))
	}
}

func TestOnlyAMessageAndItsCopiesHaveItsDelivery(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uuid  string
		other func(msg *message.Message) *message.Message
		has   bool
	}{
		"itself":                     {"1", func(msg *message.Message) *message.Message { return msg }, true},
		"itself, without a UUID":     {"", func(msg *message.Message) *message.Message { return msg }, true},
		"a copy":                     {"1", func(msg *message.Message) *message.Message { return msg.CopyWithContext() }, true},
		"a copy without a UUID":      {"", func(msg *message.Message) *message.Message { return msg.CopyWithContext() }, false},
		"a copy without its context": {"1", func(msg *message.Message) *message.Message { return msg.Copy() }, false},
		"another with its context": {"1", func(msg *message.Message) *message.Message {
			other := message.NewMessage("2", nil)
			other.SetContext(msg.Context())
			return other
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDelivery(t)
			d.accept(message.NewMessage(c.uuid, nil))
			if found := Of(c.other(d.msg)); c.has {
				require.Same(t, d, found)
			} else {
				require.Nil(t, found)
			}
		})
	}
}

func TestAMessageThatNewMessageDidNotMakeCanBeAcked(t *testing.T) {
	t.Parallel()
	d := newDelivery(t)
	d.accept(&message.Message{UUID: "2", Payload: []byte("p")})
	acked := d.msg.Acked()
	require.NotNil(t, acked)
	require.True(t, d.msg.Ack())
	<-acked
	require.Equal(t, "p", string(d.msg.Payload))
	require.NotNil(t, d.msg.Metadata)
}
