package publish

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func TestACallHasSoManyMessagesAndBytesAtMost(t *testing.T) {
	t.Parallel()
	type size struct{ messages, bytes int }
	for name, c := range map[string]struct {
		waiting []size
		want    []int // batches of each call
	}{
		"nothing":                {nil, nil},
		"as many messages as go": {[]size{{999, 0}, {1, 0}, {1, 0}}, []int{2, 1}},
		"too many messages":      {[]size{{600, 0}, {600, 0}, {400, 0}}, []int{1, 2}},
		"as many bytes as go":    {[]size{{1, joinedBytes - 1}, {1, 1}, {1, 1}}, []int{2, 1}},
		"too many bytes":         {[]size{{1, joinedBytes}, {1, 1}, {1, 1}}, []int{1, 2}},
		"one above the limits":   {[]size{{5000, 9 * joinedBytes}, {1, 1}}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			j := joining{busy: true}
			for _, s := range c.waiting {
				require.False(t, j.enter(&Batch{Messages: make([]queue.Message, s.messages), Bytes: s.bytes}))
			}
			var got []int
			for together := j.next(); together != nil; together = j.next() {
				require.True(t, j.busy)
				got = append(got, len(together))
			}
			require.Equal(t, c.want, got)
			require.True(t, j.enter(&Batch{}), "the next caller makes its call itself")
		})
	}
}

func TestBatchesThatWerePutBackAreNotMixedWithOthers(t *testing.T) {
	t.Parallel()
	a, b, c := &Batch{turn: putBack}, &Batch{turn: putBack}, &Batch{}
	j := joining{busy: true, most: 1, hasten: true, waiting: []*Batch{a, b, c}}
	require.Equal(t, []*Batch{a}, j.next())
	j.most = 2
	require.Equal(t, []*Batch{b}, j.next())
	require.Equal(t, 2, j.most)
	require.True(t, j.hasten)
	require.Equal(t, []*Batch{c}, j.next())
	require.Zero(t, j.most)
	require.False(t, j.hasten)

	j.most, j.hasten = 2, true
	require.Nil(t, j.next())
	require.Zero(t, j.most, "the next batch comes alone")
	require.False(t, j.hasten)
}

func TestOutcomeOfACall(t *testing.T) {
	t.Parallel()
	refusal := &queue.Refusal{}
	for want, err := range map[fate]error{
		published: nil, refused: fmt.Errorf("wrapped: %w", refusal), unconfirmed: fmt.Errorf("wrapped: %w", queue.ErrNotReplicated),
		failed: errors.New("network"),
	} {
		o := judge(err)
		require.Equal(t, want, o.fate)
		require.Equal(t, err, o.err)
		require.Equal(t, want == refused, o.refusal == refusal)
	}
}

func TestReplicasAreWaitedForOnceForBatchesThatCameTogether(t *testing.T) {
	t.Parallel()
	a, b := batch("", ""), batch("same", queue.Reject)
	c := batch("same", queue.Reject)
	j := joining{busy: true}
	require.Empty(t, j.settle([]*Batch{a, b, c}, judge(&queue.Refusal{Twice: []int{2}, Room: 9})))
	require.Equal(t, []*Batch{a, b}, j.next())
	require.False(t, j.hasten)
	j.settle([]*Batch{a, b}, judge(queue.ErrNotReplicated))
	require.ErrorIs(t, a.err, queue.ErrNotReplicated)
	require.Equal(t, []*Batch{c}, j.next())
	require.True(t, j.hasten)
	j.settle([]*Batch{c}, judge(nil))
	require.False(t, j.hasten)
}

func TestACallerLeavesWhereverItsBatchIs(t *testing.T) {
	t.Parallel()
	refusal := judge(&queue.Refusal{Taken: []int{0}})
	taken := func() *Batch { return batch("taken", queue.Reject) }

	t.Run("waiting", func(t *testing.T) {
		b := batch("", "")
		j := joining{busy: true}
		j.enter(b)
		require.True(t, j.leave(b))
		require.Equal(t, errLeft, b.err)
		require.Nil(t, j.next())
	})
	t.Run("under way, and published", func(t *testing.T) {
		b := batch("", "")
		j := joining{busy: true}
		require.False(t, j.leave(b))
		require.Equal(t, []*Batch{b}, j.settle([]*Batch{b}, judge(nil)))
		require.NoError(t, b.err)
	})
	t.Run("under way, and not put back", func(t *testing.T) {
		first, b, last := taken(), batch("", ""), batch("", "")
		j := joining{busy: true}
		require.False(t, j.leave(b))
		require.Equal(t, []*Batch{first, b}, j.settle([]*Batch{first, b, last}, refusal))
		require.Equal(t, errLeft, b.err)
		require.Equal(t, []*Batch{last}, j.next())
	})
	t.Run("waiting again", func(t *testing.T) {
		first, b := taken(), batch("", "")
		j := joining{busy: true}
		require.Equal(t, []*Batch{first}, j.settle([]*Batch{first, b}, refusal))
		require.True(t, j.leave(b))
		require.Nil(t, j.next())
	})
}

// batch has one message, with a delay ID if id is not empty.
func batch(id string, mode queue.Mode) *Batch {
	return &Batch{Messages: []queue.Message{{Options: queue.Options{DelayID: id, Mode: mode}}}}
}

// server is a topic as the publish script sees it.
type server struct {
	names   map[string]bool
	waiting int
	limit   int // of waiting messages; 0: none
}

// publish takes all messages, or refuses the call as the script does.
func (r *server) publish(messages []queue.Message) error {
	names := map[string]bool{}
	var taken, twice []int
	needed, all := 0, 0
	for i, m := range messages {
		id := m.Options.DelayID
		all++
		switch {
		case id == "":
			needed++
		case m.Options.Mode == queue.Reject && r.names[id]:
			taken = append(taken, i)
		case m.Options.Mode == queue.Reject && names[id]:
			twice = append(twice, i)
		case !r.names[id] && !names[id]:
			needed++
		}
		if id != "" {
			names[id] = true
		}
	}
	switch {
	case len(taken) > 0:
		return &queue.Refusal{Taken: taken}
	case len(twice) > 0:
		return &queue.Refusal{Twice: twice}
	case r.limit > 0 && r.waiting+needed > r.limit:
		return &queue.Refusal{Room: max(r.limit-r.waiting, 0), Full: true}
	}
	for id := range names {
		r.names[id] = true
	}
	r.waiting += needed
	return nil
}

// run publishes batches that came together, and returns how many messages each call had.
func run(j *joining, r *server) (calls []int) {
	for together := j.next(); together != nil; together = j.next() {
		var messages []queue.Message
		for _, b := range together {
			messages = append(messages, b.Messages...)
		}
		calls = append(calls, len(messages))
		j.settle(together, judge(r.publish(messages)))
	}
	return calls
}

func TestRefusedBatchesCostOthersFewCalls(t *testing.T) {
	t.Parallel()
	const callers = 64
	every := make([]int, callers)
	unique, pairs, same, replacing := map[int]string{}, map[int]string{}, map[int]string{}, map[int]string{}
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
		ids     map[int]string // of batches; "taken" is a name that a message has
		mode    queue.Mode
		limit   int
		refused []int
		calls   []int // messages of each
	}{
		"delay IDs of messages that were there": {
			ids: map[int]string{20: "taken", 40: "taken", 63: "taken"}, refused: []int{20, 40, 63}, calls: []int{64, 61},
		},
		"delay IDs of each other": {
			ids: map[int]string{20: "a", 30: "a", 50: "a", 55: "b"}, refused: []int{30, 50}, calls: []int{64, 62, 2},
		},
		"both": {
			ids: map[int]string{10: "a", 20: "a", 40: "taken"}, refused: []int{20, 40}, calls: []int{64, 63, 62, 1},
		},
		"pairs with delay IDs of each other": {ids: pairs, refused: odd, calls: []int{64, 32, 32}},
		"one delay ID":                       {ids: same, refused: every[1:], calls: []int{64, 1, 2, 4, 8, 16, 32, 1}},
		"room for ten":                       {limit: 1 + 10, refused: every[10:], calls: []int{64, 10, 20, 34}},
		"no room for the last four":          {limit: 1 + callers - 4, refused: []int{60, 61, 62, 63}, calls: []int{64, 60, 4}},
		"no room for any, which may all take the place of others": {
			ids: unique, mode: "replace", limit: 1, refused: every, calls: append([]int{callers}, slices.Repeat([]int{1}, callers)...),
		},
		"no room for one among those that take the place of another": {
			ids: replacing, mode: "replace", limit: 1, refused: []int{5}, calls: []int{64, 63},
		},
		"no room for any, and delay IDs": {ids: unique, limit: 1, refused: every, calls: []int{64}},
		"no room for any":                {limit: 1, refused: every, calls: []int{64}},
	} {
		t.Run(name, func(t *testing.T) {
			mode := cmp.Or(c.mode, queue.Reject)
			if mode == "replace" {
				mode = queue.Replace
			}
			j := joining{busy: true}
			var all []*Batch
			for i := range callers {
				all = append(all, batch(c.ids[i], mode))
				j.enter(all[i])
			}
			require.Equal(t, c.calls, run(&j, &server{names: map[string]bool{"taken": true}, waiting: 1, limit: c.limit}))
			for i, b := range all {
				require.Equal(t, slices.Contains(c.refused, i), b.err != nil, i)
			}
		})
	}
}

// Another process takes the delay ID that all have, after the first of them has gone alone.
func TestBatchesThatAreRefusedAfterOneAloneGoTogether(t *testing.T) {
	t.Parallel()
	j, r := joining{busy: true}, &server{names: map[string]bool{}}
	var all []*Batch
	for i := range 16 {
		all = append(all, batch("same", queue.Reject))
		j.enter(all[i])
	}
	require.Empty(t, j.settle(j.next(), judge(&queue.Refusal{Twice: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}})))
	r.names["same"] = true
	require.Equal(t, []int{1, 2, 4, 8, 1}, run(&j, r))
	for i, b := range all {
		require.True(t, b.err != nil, i)
	}
}

func TestARefusedBatchIsToldTheDelayIDThatIsTaken(t *testing.T) {
	t.Parallel()
	first, second := batch("a", queue.Reject), batch("b", queue.Reject)
	second.Messages = append(second.Messages, batch("c", queue.Reject).Messages...)
	j := joining{busy: true}
	require.Equal(t, []*Batch{second}, j.settle([]*Batch{first, second}, judge(&queue.Refusal{Taken: []int{2}})))
	require.ErrorIs(t, second.err, queue.ErrExists)
	require.ErrorContains(t, second.err, `"c"`)
	require.Equal(t, []*Batch{first}, j.next())
}

// Each batch is done once, in whatever order batches come, leave and are refused. Batches without a
// delay ID keep their order. A batch is refused only if Redis refuses it alone.
func TestJoiningSettlesEachBatchOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := &server{names: map[string]bool{"a": true}, waiting: 1, limit: rapid.SampledFrom([]int{0, 0, 3, 8}).Draw(t, "limit")}
		var j joining
		var together []*Batch
		var all, ended []*Batch // ended in the order in which callers were told
		end := func(b *Batch) {
			if slices.Contains(ended, b) {
				t.Fatalf("batch %d is done twice", slices.Index(all, b))
			}
			ended = append(ended, b)
		}
		last := -1 // the index of the last batch without delay IDs that was published
		settle := func() {
			var messages []queue.Message
			for _, b := range together {
				messages = append(messages, b.Messages...)
			}
			var err error
			switch rapid.IntRange(0, 9).Draw(t, "fault") {
			case 0:
				err = errors.New("network")
			case 1:
				if err = r.publish(messages); err == nil {
					err = queue.ErrNotReplicated
				}
			default:
				err = r.publish(messages)
			}
			done := j.settle(together, judge(err))
			for _, b := range done {
				end(b)
				switch refusal := (*queue.Refusal)(nil); {
				case b.err == nil || errors.Is(b.err, queue.ErrNotReplicated):
					named := slices.ContainsFunc(b.Messages, func(m queue.Message) bool { return m.Options.DelayID != "" })
					if i := slices.Index(all, b); !named {
						if i < last {
							t.Fatalf("batch %d is published after batch %d", i, last)
						}
						last = i
					}
				case errors.Is(b.err, queue.ErrExists) || errors.As(b.err, &refusal):
					if r.publish(b.Messages) == nil {
						t.Fatalf("batch %d is refused, and goes alone", slices.Index(all, b))
					}
				case b.err == errLeft && b.turn != leaving:
					t.Fatalf("batch %d has not left", slices.Index(all, b))
				}
			}
			for _, b := range together {
				if waits := slices.Contains(j.waiting, b); waits == slices.Contains(done, b) {
					t.Fatalf("batch %d waits: %v, and is done: %v", slices.Index(all, b), waits, !waits)
				}
			}
			if together = j.next(); (together != nil) != j.busy {
				t.Fatal("it is busy with nothing, or calls while it is free")
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0, 1, 2:
				b := &Batch{Messages: make([]queue.Message, rapid.IntRange(1, 3).Draw(t, "messages"))}
				for i := range b.Messages {
					b.Messages[i].Options.DelayID = rapid.SampledFrom([]string{"", "", "a", "b", "c"}).Draw(t, "id")
					b.Messages[i].Options.Mode = rapid.SampledFrom([]queue.Mode{queue.Replace, queue.Reject}).Draw(t, "mode")
				}
				all = append(all, b)
				if j.enter(b) {
					if together != nil {
						t.Fatal("two calls are under way")
					}
					together = []*Batch{b}
				}
			case 3:
				if together != nil {
					settle()
				}
			case 4:
				if len(all) > 0 {
					b := rapid.SampledFrom(all).Draw(t, "leaves")
					if !slices.Contains(ended, b) && j.leave(b) {
						end(b)
					}
				}
			}
		}
		for calls := 0; together != nil; calls++ {
			if calls > 10*len(all) {
				t.Fatal("it goes on and on")
			}
			settle()
		}
		if len(ended) != len(all) {
			t.Fatalf("%d of %d batches are done", len(ended), len(all))
		}
	})
}
