package redisdelay

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

func TestWhatGoesTogetherIsLimited(t *testing.T) {
	type size struct{ messages, bytes int }
	for name, c := range map[string]struct {
		waiting []size
		want    []int // batches of each call
	}{
		"nothing":             {nil, nil},
		"as many as may":      {[]size{{999, 0}, {1, 0}, {1, 0}}, []int{2, 1}},
		"too many messages":   {[]size{{600, 0}, {600, 0}, {400, 0}}, []int{1, 2}},
		"as much as may":      {[]size{{1, joinedBytes - 1}, {1, 1}, {1, 1}}, []int{2, 1}},
		"too many bytes":      {[]size{{1, joinedBytes}, {1, 1}, {1, 1}}, []int{1, 2}},
		"more than may, once": {[]size{{5000, 9 * joinedBytes}, {1, 1}}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &line{busy: true}
			for _, s := range c.waiting {
				l.waiting = append(l.waiting, &batch{messages: make([]queue.Message, s.messages), bytes: s.bytes})
			}
			var got []int
			for together := l.next(); together != nil; together = l.next() {
				require.True(t, l.busy)
				got = append(got, len(together))
			}
			require.Equal(t, c.want, got)
			require.False(t, l.busy, "the next caller makes its call itself")
		})
	}
}

// What was put back goes by itself, and says nothing of those who come after it.
func TestWhatWasPutBackIsNotMixedWithOthers(t *testing.T) {
	a, b, c := &batch{again: true}, &batch{again: true}, &batch{}
	l := &line{busy: true, most: 1, unconfirmed: true, waiting: []*batch{a, b, c}}
	require.Equal(t, []*batch{a}, l.next())
	l.most = 2
	require.Equal(t, []*batch{b}, l.next())
	require.Equal(t, 2, l.most)
	require.True(t, l.unconfirmed)
	require.Equal(t, []*batch{c}, l.next())
	require.Zero(t, l.most)
	require.False(t, l.unconfirmed)

	l.most, l.unconfirmed = 2, true
	require.Nil(t, l.next())
	require.Zero(t, l.most, "whoever comes next comes alone")
	require.False(t, l.unconfirmed)
}

// A batch that waits to be used again keeps nothing of its last call.
func TestAFreeBatchIsEmpty(t *testing.T) {
	var p Publisher
	for _, n := range []int{1, 3} {
		b := p.newBatch(n)
		require.Len(t, b.messages, n)
		b.messages[0] = queue.Message{ID: "id", Body: []byte("body")}
		b.bytes, b.prepared, b.err = 4, time.Now(), errors.New("failed")
		done := b.done
		p.free(b)
		require.Equal(t, &batch{done: done}, b)
	}
}

// slowMarshaler takes a second for a message.
type slowMarshaler struct{ BinaryMarshaler }

func (m slowMarshaler) Marshal(topic string, msg *message.Message) ([]byte, error) {
	time.Sleep(time.Second)
	return m.BinaryMarshaler.Marshal(topic, msg)
}

// What is left of Watermill's duration is counted by the publisher's clock, from one time for all messages of a call.
func TestMessagesOfACallArePreparedAtOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{config: PublisherConfig{Marshaler: slowMarshaler{}, MaxPublishMessages: 2, MaxPublishBytes: 1000, MaxMessageBytes: 1000}}
		until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		var messages []*message.Message
		for range 2 {
			msg := message.NewMessage("uuid", nil)
			msg.Metadata = message.Metadata{delay.DelayedUntilKey: until, delay.DelayedForKey: "2h"}
			messages = append(messages, msg)
		}
		b, err := p.prepare("t", messages)
		require.NoError(t, err)
		require.Equal(t, queue.In(time.Hour+time.Second), b.messages[0].Due)
		require.Equal(t, b.messages[0].Due, b.messages[1].Due)
	})
}

// The memory in which calls are joined keeps no bodies until the next call, which may be long after.
func TestMemoryForJoinedCallsKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		client.AddHook(unreachable{})
		p, err := NewPublisher(PublisherConfig{Client: client}, nil)
		require.NoError(t, err)
		l := &line{publisher: p, topic: p.topic("t")}
		room := make([]queue.Message, 0, 3)
		body := queue.Message{ID: "id", Body: []byte("body")}
		together := []*batch{{messages: []queue.Message{body, body}}, {messages: []queue.Message{body}}}

		done, got := l.send(together, room)

		require.Equal(t, together, done)

		require.Empty(t, got)
		require.Same(t, &room[:1][0], &got[:1][0], "the next call uses it again")
		require.Equal(t, make([]queue.Message, 3), got[:3])
		for _, b := range together {
			require.ErrorIs(t, b.err, errUnreachable)
			require.Equal(t, body, b.messages[0], "which is the caller's")
		}
		require.NoError(t, p.Close())
	})
}

// Where others keep the processors busy, those who were answered come back late, and are not waited for.
func TestTheLineHurriesWhereCallersComeBackLate(t *testing.T) {
	var l line
	for _, took := range []time.Duration{time.Second, time.Second, time.Millisecond, 1100 * time.Microsecond, time.Second} {
		l.judge(10, took)
		require.Zero(t, l.hurry)
	}
	l.judge(10, 1100*time.Microsecond)
	require.Equal(t, 1000, l.hurry)

	synctest.Test(t, func(t *testing.T) {
		together := []*batch{{done: make(chan struct{}, 1)}, {done: make(chan struct{}, 1)}}
		l.answer(together, nil) // to wait would be a deadlock
		require.Equal(t, 999, l.hurry)
		for _, b := range together {
			require.Len(t, b.done, 1)
		}
	})
}

// Who comes back does not go with those who were put back, so the line does not wait for them either.
func TestTheLineWaitsForNobodyWhereOthersWerePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := line{waiting: []*batch{{again: true}}}
		together := []*batch{{done: make(chan struct{}, 1)}, {done: make(chan struct{}, 1)}}
		l.answer(together, nil) // to wait would be a deadlock
		for _, b := range together {
			require.Len(t, b.done, 1)
		}
	})
}

// watchedContext tells whether the line was locked while it was asked.
type watchedContext struct {
	context.Context
	line   *line
	locked bool
}

func (c *watchedContext) Err() error {
	if c.locked = !c.line.mu.TryLock(); !c.locked {
		c.line.mu.Unlock()
	}
	return nil
}

// Whoever leaves the line looks for itself there: it is to find itself, or to be among those who are done.
func TestWhoIsPutBackIsAskedWhetherItWaitsInOneStepWithThat(t *testing.T) {
	var l line
	ctx := &watchedContext{Context: t.Context(), line: &l}
	b := &batch{ctx: ctx, messages: make([]queue.Message, 1)}
	require.Empty(t, l.putBack([]*batch{b}, &queue.Refusal{}))
	require.True(t, ctx.locked)
	require.Equal(t, []*batch{b}, l.waiting)
}

// unreachable is a client's hook, for bubbles, for a server that does not answer within a millisecond.
type unreachable struct{}

func (unreachable) DialHook(next redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errUnreachable }
}

func (unreachable) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Millisecond)
		cmd.SetErr(errUnreachable)
		return errUnreachable
	}
}

func (unreachable) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Millisecond)
		for _, cmd := range cmds {
			cmd.SetErr(errUnreachable)
		}
		return errUnreachable
	}
}

var errUnreachable = errors.New("unreachable")

// Users' tests may run in bubbles, with clients that do not need a network: one Publisher has nothing of another's, and
// waits for nothing that does not happen while the clock stands still.
func TestPublishersInBubbles(t *testing.T) {
	publish := func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		client.AddHook(unreachable{})
		p, err := NewPublisher(PublisherConfig{Client: client}, nil)
		require.NoError(t, err)
		var callers sync.WaitGroup
		for caller := range 8 {
			callers.Go(func() {
				for range 20 + caller {
					if err := p.Publish("t", message.NewMessage("x", nil)); !errors.Is(err, errUnreachable) {
						t.Errorf("Publish returned %v", err)
					}
				}
			})
		}
		callers.Wait()
		require.NoError(t, p.Close())
	}
	for range 3 {
		synctest.Test(t, publish)
	}
}

func TestBodiesOfACallHaveMemoryOfTheirOwn(t *testing.T) {
	t.Parallel()
	p := &Publisher{}
	b := p.newBatch(1)
	for range 3 { // the second time and on, what was there is used again
		var bodies [][]byte
		for i := range 200 {
			size := 1 + i*i%997
			if i == 150 {
				size = 2 * mostKept
			}
			body := b.take(size)
			require.Empty(t, body)
			require.Equal(t, size, cap(body))
			bodies = append(bodies, append(body, bytes.Repeat([]byte{byte(i)}, size)...))
		}
		for i, body := range bodies {
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, cap(body)), body)
		}
		p.free(b) // and nobody else gets it
	}
}

func TestMemoryForBodiesIsUsedAgain(t *testing.T) {
	t.Parallel()
	p := &Publisher{}
	for _, size := range []int{1, 100, 144, mostKept / 4} {
		b := &batch{done: make(chan struct{}, 1)}
		for range 10_000 {
			b.take(size)
		}
		p.free(b)
		require.Empty(t, b.bodies)
		kept := cap(b.bodies)
		require.LessOrEqual(t, kept, mostKept)
		require.GreaterOrEqual(t, kept, mostKept/2)
		b.take(mostKept/4 + 1)
		require.Empty(t, b.bodies, "a large body has its own memory")
		b.take(size)
		require.Len(t, b.bodies, size)
		require.Equal(t, kept, cap(b.bodies), "what is kept is not used")
	}
}

func TestATopicThatTheRegistryOfAClusterHasLostIsEnteredAgain(t *testing.T) {
	t.Parallel()
	client := redistest.StartCluster(t).Client(t)
	p, err := NewPublisher(PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	publish := func() { require.NoError(t, p.Publish("t", message.NewMessage("", nil))) }
	listed := func() bool { return client.SIsMember(t.Context(), queue.Registry(DefaultKeyPrefix), "t").Val() }
	publish()
	require.True(t, listed())
	require.NoError(t, client.Del(t.Context(), queue.Registry(DefaultKeyPrefix)).Err())
	publish()
	p.listings.Wait()
	require.False(t, listed(), "it is not asked for each time")
	p.lines["t"].listed = time.Now().Add(-relist)
	publish()
	p.listings.Wait()
	require.True(t, listed())
	require.NoError(t, p.Close())
}
