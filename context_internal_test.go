package redisdelay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

type valueKey struct{}

func newContext(t *testing.T) *delivery {
	values := context.WithoutCancel(context.WithValue(t.Context(), valueKey{}, "value"))
	return &delivery{
		leased: leased{Leased: queue.Leased{ID: "an-id"}},
		of:     &subscription{values: values, topic: &queue.Topic{Name: "topic"}, group: &queue.Group{Name: "group"}},
	}
}

func TestTheContextOfADelivery(t *testing.T) {
	t.Parallel()
	over := errors.New("over")
	ends := map[string]func(t *testing.T, d *delivery){
		"nobody has looked": func(_ *testing.T, d *delivery) { d.ending.end(over) },
		"somebody waits": func(t *testing.T, d *delivery) {
			done := d.Done()
			select {
			case <-done:
				t.Error("it has ended before it ends")
			default:
			}
			d.ending.end(over)
			<-done
		},
		"it ends twice": func(_ *testing.T, d *delivery) {
			d.ending.end(over)
			d.ending.end(errSettled)
		},
		"it ends twice, and somebody waits": func(_ *testing.T, d *delivery) {
			done := d.Done()
			d.ending.end(over)
			d.ending.end(errSettled)
			<-done
		},
	}
	ask := map[string]func(t *testing.T, d *delivery){
		"whether it is done":  func(_ *testing.T, d *delivery) { <-d.Done() },
		"for the error":       func(t *testing.T, d *delivery) { require.Equal(t, context.Canceled, d.Err()) },
		"for the cause":       func(t *testing.T, d *delivery) { require.Equal(t, over, context.Cause(d)) },
		"for a later context": func(t *testing.T, d *delivery) { requireEnded(t, context.WithValue(d, valueKey{}, 1), over) },
	}
	for when, end := range ends {
		for what, first := range ask {
			t.Run(fmt.Sprintf("%s, asked %s first", when, what), func(t *testing.T) {
				d := newContext(t)
				requireOpen(t, d)
				end(t, d)
				first(t, d)
				requireEnded(t, d, over)
			})
		}
	}
}

func requireOpen(t *testing.T, d *delivery) {
	t.Helper()
	require.NoError(t, d.Err())
	require.NoError(t, context.Cause(d))
	requireValues(t, d)
	require.Nil(t, d.ending.ctx, "a context was made that nobody needs")
}

func requireEnded(t *testing.T, ctx context.Context, cause error) {
	t.Helper()
	<-ctx.Done()
	require.Equal(t, context.Canceled, ctx.Err())
	require.Equal(t, cause, context.Cause(ctx))
	derived, cancel := context.WithCancel(ctx)
	defer cancel()
	require.Equal(t, context.Canceled, derived.Err())
	require.Equal(t, cause, context.Cause(derived))
}

func requireValues(t *testing.T, d *delivery) {
	t.Helper()
	require.Equal(t, "value", d.Value(valueKey{}))
	require.Nil(t, d.Value("nothing"))
	_, limited := d.Deadline()
	require.False(t, limited)
	described, ok := DeliveryFromContext(context.WithValue(d, valueKey{}, 1))
	require.True(t, ok)
	require.Equal(t, "an-id", described.ID)
	require.Equal(t, "redisdelay.Delivery(an-id)", fmt.Sprint(d))
}

func TestTheContextOfADeliveryKeepsItsValuesWhenItEnds(t *testing.T) {
	t.Parallel()
	d := newContext(t)
	d.ending.end(errSettled)
	requireValues(t, d)
	d = newContext(t)
	<-func() <-chan struct{} { done := d.Done(); d.ending.end(errSettled); return done }()
	requireValues(t, d)
}

// The context package knows how to end what is derived from its own contexts without a goroutine for each.
func TestContextsDerivedFromADelivery(t *testing.T) { // beside no other test, which would have goroutines too
	const many = 1000
	over := errors.New("over")
	d := newContext(t)
	before := runtime.NumGoroutine()
	derived, called := make([]context.Context, many), make(chan struct{}, many)
	for i := range derived {
		var cancel context.CancelFunc
		derived[i], cancel = context.WithTimeout(context.WithValue(d, valueKey{}, i), time.Hour)
		defer cancel()
		context.AfterFunc(derived[i], func() { called <- struct{}{} })
	}
	require.Less(t, runtime.NumGoroutine()-before, many/2)
	d.ending.end(over)
	for i, ctx := range derived {
		require.Equal(t, context.Canceled, ctx.Err(), "it ends at once")
		require.Equal(t, over, context.Cause(ctx))
		require.Equal(t, i, ctx.Value(valueKey{}))
		<-called
	}
}

// Whoever looks while it ends sees the end.
func TestTheEndOfADeliveryIsSeenWheneverSomebodyLooks(t *testing.T) {
	t.Parallel()
	for range 2000 {
		d := newContext(t)
		go d.ending.end(errSettled)
		<-d.Done()
		require.Equal(t, errSettled, context.Cause(d))
	}
}
