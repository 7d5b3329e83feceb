package redisdelay_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestConcurrentPublishesAllArriveInTheOrderOfEachCaller(t *testing.T) {
	const callers, calls = 24, 20
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		messages := subscribe(t, s, "t")
		var wg sync.WaitGroup
		for caller := range callers {
			wg.Go(func() {
				for call := range calls {
					pair := []*message.Message{
						text(fmt.Sprintf("%02d %02d a", caller, call)), text(fmt.Sprintf("%02d %02d b", caller, call)),
					}
					assert.NoError(t, p.Publish("t", pair...))
				}
			})
		}
		got := map[string][]string{}
		var all []string
		for range 2 * callers * calls {
			payload := consume(t, messages, 1)[0]
			all = append(all, payload)
			got[payload[:2]] = append(got[payload[:2]], payload)
		}
		wg.Wait()
		for _, one := range got {
			require.IsIncreasing(t, one)
		}
		for i := 0; i < len(all); i += 2 {
			require.Equal(t, all[i][:5], all[i+1][:5], "one call's messages are not together")
		}
		slices.Sort(all)
		require.Len(t, slices.Compact(all), 2*callers*calls)
	})
}

// startedMarshaler tells of each message that is being published.
type startedMarshaler struct {
	redisdelay.BinaryMarshaler
	started chan string
}

func (m startedMarshaler) Marshal(topic string, msg *message.Message) ([]byte, error) {
	m.started <- string(msg.Payload)
	return m.BinaryMarshaler.Marshal(topic, msg)
}

// gated returns a publisher whose first call is on its way to Redis and held, and the call's
// result.
func gated(t *testing.T, s redistest.Server) (p *redisdelay.Publisher, held *hook, started chan string, first <-chan error) {
	client := another(t, s)
	held = gate(t, client)
	started = make(chan string, 1000)
	p = newPublisher(t, s, func(c *redisdelay.PublisherConfig) {
		c.Client, c.Marshaler = client, startedMarshaler{started: started}
		c.CloseTimeout = soon
	})
	first = begin(func() error { return p.Publish("t", text("first")) })
	wait(t, held.arrived, "the first call")
	require.Equal(t, "first", <-started)
	return p, held, started, first
}

func TestConcurrentPublishesGoTogether(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, held, started, first := gated(t, s)
		var others []<-chan error
		for _, payload := range numbered(0, 50) {
			others = append(others, begin(func() error { return p.Publish("t", text(payload)) }))
		}
		for range others {
			wait(t, started, "the other calls")
		}
		held.open()
		require.NoError(t, <-first)
		for _, other := range others {
			require.NoError(t, <-other)
		}
		// The first of all is sent twice where the server does not have the script yet.
		require.Less(t, held.calls(), 25)
		require.EqualValues(t, 51, stateOf(t, s, "t").Bodies)
	})
}

// They are all due at the same instant, at which the order is that of their IDs.
func TestCallsThatWaitKeepTheirOrder(t *testing.T) {
	for name, refused := range map[string]bool{"in one call": false, "in several, as one of them is refused": true} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				register(t, s, "t")
				require.NoError(t, newPublisher(t, s).Publish("t", named("taken", "x", redisdelay.DelayIDReject, never/2)))
				due := serverTime(t, s).Add(never)
				p, held, _, first := gated(t, s)
				var calls []<-chan error
				want := []string{"taken"}
				for i := range 20 {
					one, two := text(fmt.Sprint(i, " a")), text(fmt.Sprint(i, " b"))
					redisdelay.DelayUntil(one, due)
					redisdelay.DelayUntil(two, due)
					if refused && i == 10 {
						redisdelay.SetDelayID(two, "x", redisdelay.DelayIDReject)
					} else {
						want = append(want, string(one.Payload), string(two.Payload))
					}
					calls = append(calls, queued(t, func() error { return p.Publish("t", one, two) }))
				}
				held.open()
				require.NoError(t, <-first)
				for i, call := range calls {
					if err := <-call; refused && i == 10 {
						require.ErrorIs(t, err, redisdelay.ErrExists)
					} else {
						require.NoError(t, err)
					}
				}
				page, err := adminOf(t, s).List(ctx, "t", admin.Query{State: admin.Waiting, Limit: 100})
				require.NoError(t, err)
				var got []string
				for _, m := range page.Messages {
					got = append(got, string(m.Payload))
				}
				require.Equal(t, want, got)
			})
		})
	}
}

// A caller that waits again is not under way, and may leave. Callers 4 to 8 have the delay ID of 3,
// so that 0 to 3 go next.
func TestCallersMayLeaveAfterTheirCallWasRefusedForAnother(t *testing.T) {
	for name, taken := range map[string]bool{"what goes next is published": false, "what goes next is refused, too": true} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				client := another(t, s)
				held, third := gate(t, client), gate(t, client)
				third.free = 2
				p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
				first := begin(func() error { return p.Publish("t", delayed("first", never)) })
				wait(t, held.arrived, "the first call")
				limited, cancel := context.WithCancel(ctx)
				var calls []<-chan error
				for i, id := range []string{"0", "1", "2", "same", "same", "same", "same", "same", "same"} {
					msg := named(fmt.Sprint(i), id, redisdelay.DelayIDReject, never)
					msg.SetContext(limited)
					calls = append(calls, queued(t, func() error { return p.Publish("t", msg) }))
				}
				held.open()
				require.NoError(t, <-first)
				wait(t, third.arrived, "what goes next")
				if taken {
					require.NoError(t, newPublisher(t, s).Publish("t", named("2", "2", redisdelay.DelayIDReject, never)))
				}
				cancel()
				for _, call := range calls[4:] {
					require.ErrorIs(t, wait(t, call, "who waits"), context.Canceled)
				}
				third.open()
				bodies := 1 + 4
				if taken {
					bodies = 1 + 1
				}
				for i, call := range calls[:4] {
					switch err := wait(t, call, "who is under way"); {
					case !taken:
						require.NoError(t, err)
					case i == 2:
						require.ErrorIs(t, err, redisdelay.ErrExists)
					default:
						require.ErrorIs(t, err, context.Canceled)
					}
				}
				require.EqualValues(t, bodies, stateOf(t, s, "t").Bodies)
			})
		})
	}
}

// sizes notes how many messages each call of Publish has that Redis runs.
type sizes struct {
	mu  sync.Mutex
	all []int
}

func (s *sizes) note(call redis.Cmder) {
	if args := call.Args(); call.Name() == "evalsha" && queue.ScriptName(args[1].(string)) == "publish" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, args[3+args[2].(int)+10].(int))
	}
}

// Refused callers are told at once, and the others go together without them.
func TestRefusedCallersCostOthersFewCalls(t *testing.T) {
	const callers = 64
	every := make([]int, callers)
	unique, pairs, same := map[int]string{}, map[int]string{}, map[int]string{}
	replacing := map[int]string{}
	var odd []int
	for i := range every {
		every[i], unique[i], pairs[i], same[i] = i, fmt.Sprint("id ", i), fmt.Sprint("pair ", i/2), "same"
		if i%2 == 1 {
			odd = append(odd, i)
		}
		if i != 5 {
			replacing[i] = "taken"
		}
	}
	for name, c := range map[string]struct {
		ids     map[int]string // of callers; "taken" is
		mode    redisdelay.DelayIDMode
		limit   int
		refused []int
		err     error
		calls   []int // messages of each, after the first
	}{
		"delay IDs of messages that were there": {
			ids: map[int]string{20: "taken", 40: "taken", 63: "taken"}, refused: []int{20, 40, 63}, err: redisdelay.ErrExists,
			calls: []int{64, 61},
		},
		"delay IDs of each other": {
			ids: map[int]string{20: "a", 30: "a", 50: "a", 55: "b"}, refused: []int{30, 50}, err: redisdelay.ErrExists,
			calls: []int{64, 62, 2},
		},
		"both": {
			ids: map[int]string{10: "a", 20: "a", 40: "taken"}, refused: []int{20, 40}, err: redisdelay.ErrExists,
			calls: []int{64, 63, 62, 1},
		},
		"pairs that have the delay IDs of each other": {
			ids: pairs, refused: odd, err: redisdelay.ErrExists,
			calls: []int{64, 32, 32},
		},
		"all have the same one": {
			ids: same, refused: every[1:], err: redisdelay.ErrExists,
			calls: []int{64, 1, 2, 4, 8, 16, 32, 1},
		},
		"no room but for ten": {
			limit: 2 + 10, refused: every[10:], err: redisdelay.ErrTopicFull,
			calls: []int{64, 10, 20, 34},
		},
		"no room for the last four": {
			limit: 2 + callers - 4, refused: []int{60, 61, 62, 63}, err: redisdelay.ErrTopicFull,
			calls: []int{64, 60, 4},
		},
		"no room for anybody, who may all take the place of others": {
			ids: unique, mode: redisdelay.DelayIDReplace, limit: 2, refused: every, err: redisdelay.ErrTopicFull,
			calls: append([]int{callers}, slices.Repeat([]int{1}, callers)...),
		},
		"no room for one among those who take the place of another": {
			ids: replacing, mode: redisdelay.DelayIDReplace, limit: 2, refused: []int{5}, err: redisdelay.ErrTopicFull,
			calls: []int{64, 63},
		},
		"no room for anybody, and delay IDs": {
			ids: unique, limit: 2, refused: every, err: redisdelay.ErrTopicFull,
			calls: []int{64},
		},
		"no room for anybody": {
			limit: 2, refused: every, err: redisdelay.ErrTopicFull,
			calls: []int{64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				require.NoError(t, newPublisher(t, s).Publish("t", named("taken", "taken", redisdelay.DelayIDReject, never)))
				client := another(t, s)
				var sent sizes
				client.AddHook(redistest.AfterEach(sent.note))
				held := gate(t, client)
				p := newPublisher(t, s, func(config *redisdelay.PublisherConfig) { config.Client, config.MaxWaiting = client, c.limit })
				first := begin(func() error { return p.Publish("t", delayed("first", never)) })
				wait(t, held.arrived, "the first call")
				var calls []<-chan error
				for i := range callers {
					msg := delayed(fmt.Sprint(i), never)
					if id, ok := c.ids[i]; ok {
						redisdelay.SetDelayID(msg, id, cmp.Or(c.mode, redisdelay.DelayIDReject))
					}
					calls = append(calls, queued(t, func() error { return p.Publish("t", msg) }))
				}
				held.open()
				require.NoError(t, <-first)
				for i, call := range calls {
					err := <-call
					if !slices.Contains(c.refused, i) {
						require.NoError(t, err)
						continue
					}
					require.ErrorIs(t, err, c.err)
					if id := c.ids[i]; errors.Is(err, redisdelay.ErrExists) {
						require.ErrorContains(t, err, strconv.Quote(id))
					}
				}
				bodies := 1 + 1 + callers - len(c.refused)
				if c.limit > 0 {
					bodies = min(bodies, c.limit) // the others took the place of one
				}
				require.EqualValues(t, bodies, stateOf(t, s, "t").Bodies)
				require.Equal(t, c.calls, sent.all[1:])

				stats, err := newAdmin(t, s).Stats(ctx, "t")
				require.NoError(t, err)
				full := 0
				if c.err == redisdelay.ErrTopicFull {
					full = len(c.refused)
				}
				require.Equal(t, full, stats.Counters.RefusedFull)
				require.Equal(t, 1+1+callers-len(c.refused), stats.Counters.Published)
			})
		})
	}
}

// Another process takes the delay ID that all have, before the first of them goes alone.
func TestCallersThatAreRefusedAfterOneAloneGoTogether(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		held, third := gate(t, client), gate(t, client)
		third.free = 2
		var sent sizes
		client.AddHook(redistest.AfterEach(sent.note))
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		require.NoError(t, newPublisher(t, s).Publish("t", text("so that the server knows the script")))
		first := begin(func() error { return p.Publish("t", delayed("first", never)) })
		wait(t, held.arrived, "the first call")
		var calls []<-chan error
		for i := range 16 {
			msg := named(fmt.Sprint(i), "same", redisdelay.DelayIDReject, never)
			calls = append(calls, queued(t, func() error { return p.Publish("t", msg) }))
		}
		held.open()
		require.NoError(t, <-first)
		wait(t, third.arrived, "the one that goes alone")
		require.NoError(t, newPublisher(t, s).Publish("t", named("other", "same", redisdelay.DelayIDReject, never)))
		third.open()
		for _, call := range calls {
			require.ErrorIs(t, <-call, redisdelay.ErrExists)
		}
		require.Equal(t, []int{1, 16, 1, 2, 4, 8, 1}, sent.all)
	})
}

func TestACancelledCallerLeavesTheOthersAlone(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, held, started, first := gated(t, s)
		cancelled, cancel := context.WithCancel(ctx)
		second := begin(func() error { return p.Publish("t", message.NewMessageWithContext(cancelled, "", []byte("second"))) })
		third := begin(func() error { return p.Publish("t", text("third")) })
		wait(t, started, "the second call")
		wait(t, started, "the third call")

		cancel()
		require.ErrorIs(t, wait(t, second, "the cancelled call"), context.Canceled)

		held.open()
		require.NoError(t, <-first)
		require.NoError(t, <-third)
		publish(t, p, "t", "last")
		require.Equal(t, []string{"first", "third", "last"}, consume(t, subscribe(t, s, "t"), 3))
	})
}

func TestACancelDoesNotInterruptACallOnItsWay(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		client := another(t, s)
		held := gate(t, client)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		cancelled, cancel := context.WithCancel(ctx)
		result := begin(func() error { return p.Publish("t", message.NewMessageWithContext(cancelled, "", []byte("sent"))) })
		wait(t, held.arrived, "the call")
		cancel()
		held.open()
		require.NoError(t, wait(t, result, "the call"))
		require.Equal(t, []string{"sent"}, consume(t, subscribe(t, s, "t"), 1))
	})
}

// hurried has many callers publish at once, each call with a deadline of some microseconds. It
// returns the payloads by what their calls came to.
func hurried(publish func(limited context.Context, payload string) error) (calls map[string]error) {
	calls = map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for caller := range 16 {
		wg.Go(func() {
			for call := range 25 {
				limited, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
				payload := fmt.Sprintf("%02d %02d", caller, call)
				err := publish(limited, payload)
				cancel()
				mu.Lock()
				calls[payload] = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return calls
}

func TestACallThatIsTakenBackIsNotPublished(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		var published []string
		for payload, err := range hurried(func(limited context.Context, payload string) error {
			return p.Publish("t", message.NewMessageWithContext(limited, "", []byte(payload)))
		}) {
			if err == nil {
				published = append(published, payload)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		}
		require.EqualValues(t, len(published), stateOf(t, s, "t").Bodies)
		requireSame(t, published, consume(t, subscribe(t, s, "t"), len(published)))
	})
}

// panicsAtAScript gives the client a hook that panics at the next script, once it is armed.
func panicsAtAScript(client *redis.Client) (armed *atomic.Bool) {
	armed = new(atomic.Bool)
	client.AddHook(redistest.BeforeEach(func(call redis.Cmder) error {
		if strings.HasPrefix(call.Name(), "eval") && armed.CompareAndSwap(true, false) {
			panic("a fault of the hook")
		}
		return nil
	}))
	return armed
}

func TestPublishAfterAHookHasPanicked(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		armed := panicsAtAScript(client)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		publish(t, p, "topic", "before")
		armed.Store(true)
		require.ErrorContains(t, p.Publish("topic", text("panics")), "a call to Redis panicked: a fault of the hook")
		publish(t, p, "topic", "after")
	})
}

// A call that callers share is in the goroutine of none of them, so that its panic would end the
// process.
func TestAHookThatPanicsInASharedCallIsAnErrorForEachCaller(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		publish(t, newPublisher(t, s), "t", "so that the server knows the script")
		client := another(t, s)
		held, second := gate(t, client), gate(t, client)
		second.free = 1
		armed := panicsAtAScript(client)
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		first := begin(func() error { return p.Publish("t", text("first")) })
		wait(t, held.arrived, "the first call")
		var others []<-chan error
		for range 3 {
			others = append(others, queued(t, func() error { return p.Publish("t", text("shared")) }))
		}
		held.open()
		require.NoError(t, wait(t, first, "the first call"))
		wait(t, second.arrived, "the shared call")
		armed.Store(true)
		second.open()
		for _, other := range others {
			require.ErrorContains(t, wait(t, other, "a caller"), "a call to Redis panicked: a fault of the hook")
		}
		publish(t, p, "t", "after")
		require.EqualValues(t, 3, stateOf(t, s, "t").Bodies)
	})
}
