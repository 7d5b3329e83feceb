package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/delayqueue"
)

// TestModel runs random operations on a queue and on a naive model, and
// compares the results after each of them. Time is that of a bubble, in
// whole milliseconds.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		capacity := rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(rt, "capacity")
		ops := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) op {
			return op{
				kind: rapid.SampledFrom([]string{
					"produce", "produce", "produce", "consume", "consume", "try",
					"stop producer", "stop consumer", "advance", "advance",
				}).Draw(rt, "kind"),
				n: rapid.IntRange(0, 8).Draw(rt, "n"),
			}
		}), 1, 80).Draw(rt, "ops")

		// The draws are made outside, because rapid must not fail inside: a
		// bubble runs in a goroutine of its own.
		var failure error
		synctest.Test(t, func(t *testing.T) {
			failure = runModel(t.Context(), capacity, ops)
		})
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// op is one operation. The kind decides the meaning of n.
type op struct {
	kind string
	n    int
}

// item is a value and the millisecond at which it is due.
type item struct{ value, due int }

// call is an Enqueue or Dequeue under way in its own goroutine.
type call struct {
	item   item // the one to put in, or the one taken out
	cancel context.CancelFunc
	done   chan error
}

func (c *call) finished() bool { return len(c.done) > 0 }

// model is the naive queue: items sorted by due time, and then by arrival.
type model struct {
	capacity  int
	now       int
	items     []item
	producers []item // waiting for room, in order of arrival
	consumers int    // waiting for an item
	accepted  []int
	delivered []int
}

// settle completes all calls that can complete at this instant.
func (m *model) settle() {
	for {
		switch {
		case len(m.producers) > 0 && (m.capacity == 0 || len(m.items) < m.capacity):
			it := m.producers[0]
			m.producers = m.producers[1:]
			at := slices.IndexFunc(m.items, func(other item) bool { return other.due > it.due })
			if at < 0 {
				at = len(m.items)
			}
			m.items = slices.Insert(m.items, at, it)
			m.accepted = append(m.accepted, it.value)
		case m.consumers > 0 && len(m.items) > 0 && m.items[0].due <= m.now:
			m.delivered = append(m.delivered, m.items[0].value)
			m.items = m.items[1:]
			m.consumers--
		default:
			return
		}
	}
}

func runModel(ctx context.Context, capacity int, ops []op) error {
	start := time.Now()
	q := delayqueue.New[int](capacity)
	defer q.Close()
	m := &model{capacity: capacity}
	var producers, consumers []*call

	// compare lets both sides settle and collects the calls that returned.
	compare := func() error {
		synctest.Wait()
		m.accepted, m.delivered = nil, nil
		m.settle()

		var accepted, delivered []int
		collect := func(calls *[]*call, values *[]int) (err error) {
			*calls = slices.DeleteFunc(*calls, func(c *call) bool {
				if !c.finished() {
					return false
				}
				c.cancel()
				err = errors.Join(err, <-c.done)
				*values = append(*values, c.item.value)
				return true
			})
			slices.Sort(*values) // calls that return at the same instant have no order
			return err
		}
		if err := errors.Join(collect(&producers, &accepted), collect(&consumers, &delivered)); err != nil {
			return err
		}
		slices.Sort(m.accepted)
		slices.Sort(m.delivered)
		switch {
		case !slices.Equal(accepted, m.accepted):
			return fmt.Errorf("accepted %v, want %v", accepted, m.accepted)
		case !slices.Equal(delivered, m.delivered):
			return fmt.Errorf("delivered %v, want %v", delivered, m.delivered)
		case q.Len() != len(m.items):
			return fmt.Errorf("length %d, want %d", q.Len(), len(m.items))
		}
		return nil
	}
	// stop cancels a waiting call and checks that it did nothing.
	stop := func(calls []*call, i int) ([]*call, error) {
		calls[i].cancel()
		if err := <-calls[i].done; !errors.Is(err, context.Canceled) {
			return nil, fmt.Errorf("a cancelled call returned %w", err)
		}
		return slices.Delete(calls, i, i+1), nil
	}

	step := func(value int, o op) error {
		switch o.kind {
		case "produce":
			// From a little before to a little after now.
			it := item{value: value, due: m.now + o.n - 2}
			c := &call{item: it, done: make(chan error, 1)}
			var callCtx context.Context
			callCtx, c.cancel = context.WithCancel(ctx)
			go func() {
				c.done <- q.Enqueue(callCtx, it.value, start.Add(time.Duration(it.due)*time.Millisecond))
			}()
			producers = append(producers, c)
			m.producers = append(m.producers, it)
		case "consume":
			// In a bounded queue, a second consumer would race with a
			// producer that gets the room which the first one makes.
			if capacity > 0 && m.consumers > 0 {
				return nil
			}
			c := &call{done: make(chan error, 1)}
			var callCtx context.Context
			callCtx, c.cancel = context.WithCancel(ctx)
			go func() {
				value, err := q.Dequeue(callCtx)
				c.item.value = value
				c.done <- err
			}()
			consumers = append(consumers, c)
			m.consumers++
		case "try":
			due := len(m.items) > 0 && m.items[0].due <= m.now
			value, ok := q.TryDequeue()
			if ok != due || ok && value != m.items[0].value {
				return fmt.Errorf("TryDequeue returned %v, %v with items %v", value, ok, m.items)
			}
			if ok {
				m.items = m.items[1:]
			}
		case "stop producer":
			if len(producers) == 0 {
				return nil
			}
			i := o.n % len(producers)
			m.producers = slices.Delete(m.producers, i, i+1)
			var err error
			producers, err = stop(producers, i)
			return err
		case "stop consumer":
			if len(consumers) == 0 {
				return nil
			}
			m.consumers--
			var err error
			consumers, err = stop(consumers, o.n%len(consumers))
			return err
		case "advance":
			for range o.n {
				time.Sleep(time.Millisecond)
				m.now++
				if err := compare(); err != nil {
					return err
				}
			}
		}
		return nil
	}

	for i, o := range ops {
		if err := errors.Join(step(i, o), compare()); err != nil {
			return fmt.Errorf("operation %d at %d ms: %w", i, m.now, err)
		}
	}
	q.Close()
	for _, c := range slices.Concat(producers, consumers) {
		if err := <-c.done; !errors.Is(err, delayqueue.ErrClosed) {
			return fmt.Errorf("after Close: %w", err)
		}
		c.cancel()
	}
	return nil
}
