package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
)

// repeat puts the entry of a message into ready once more.
func (w *world) repeat(group, name string, front bool) {
	w.t.Helper()
	for _, entry := range w.Client.LRange(ctx, w.keys.Ready(group), 0, -1).Val() {
		if entry[:queue.IDLength] == w.id[name] {
			push := w.Client.RPush
			if front {
				push = w.Client.LPush
			}
			require.NoError(w.t, push(ctx, w.keys.Ready(group), entry).Err())
			return
		}
	}
	require.FailNow(w.t, "it is not ready: "+name)
}

// A message that is twice in one list would be handed over twice at the same time.
func TestMessageThatIsReadyTwiceIsFoundAndMended(t *testing.T) {
	for name, c := range map[string]struct {
		repeat func(w *world)
		want   int
	}{
		"side by side":    {func(w *world) { w.repeat("a", "1499", false) }, 1},
		"from end to end": {func(w *world) { w.repeat("a", "0000", false) }, 1},
		"in front":        {func(w *world) { w.repeat("a", "1499", true) }, 1},
		"three times":     {func(w *world) { w.repeat("a", "0700", false); w.repeat("a", "0700", true) }, 2},
		"several": {func(w *world) {
			for _, name := range names("%04d", 100, 160) {
				w.repeat("a", name, false)
			}
		}, 60},
		"of two groups": {func(w *world) { w.repeat("a", "0001", false); w.repeat("b", "0001", true) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			onReal(t, func(t *testing.T, w *world) {
				all := names("%04d", 0, 1500)
				w.publishNow(all...)
				c.repeat(w)
				audit, err := w.topic.Audit(ctx)
				require.NoError(t, err)
				require.Len(t, audit.Violations, c.want)
				for _, v := range audit.Violations {
					require.Equal(t, operate.FaultRepeated, v.Fault)
					did, err := w.topic.Mend(ctx, v)
					require.NoError(t, err)
					require.Len(t, did, 1, v)
				}
				w.unchanged(func() {
					for _, v := range audit.Violations {
						require.Empty(t, must(w.topic.Mend(ctx, v)), "it is right by now")
					}
				})
				audit, err = w.topic.Audit(ctx)
				require.NoError(t, err)
				require.Empty(t, audit.Violations)
				queuetest.Check(t, w.Client, w.Prefix)
				page, err := w.topic.List(ctx, "a", operate.Ready, "", 1000, 0)
				require.NoError(t, err)
				for _, m := range page.Messages {
					require.Contains(t, w.name, m.ID)
				}
				for _, group := range []string{"a", "b"} {
					var got []string
					s := w.sub(group)
					for {
						claimed := s.claim(1000)
						require.Zero(t, claimed.Orphans)
						if got = append(got, bodies(claimed)...); !claimed.More {
							break
						}
						s.ack(held(claimed)...)
					}
					require.ElementsMatch(t, all, got, "each once")
				}
			}, "a", "b")
		})
	}
}

// Each push moves the entries before it to the left, so the audit may see one entry twice.
func TestMessagesThatOnlyMoveAreNotTakenForRepeated(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow(names("%d", 0, 1500)...)
		audit := w.auditingBy(&between{walks: func(page int) {
			w.publishNow(names(fmt.Sprint("behind ", page, ":%d"), 0, 100)...)
		}})
		require.Empty(t, audit.Violations)
	}, "a")
}

// One of the two was claimed since.
func TestMessageThatIsReadyOnceByNowIsNotTouched(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.publishNow("1", "2", "3")
		w.repeat("a", "1", false)
		audit, err := w.topic.Audit(ctx)
		require.NoError(t, err)
		require.Len(t, audit.Violations, 1)
		require.NoError(t, w.Client.LPop(ctx, w.keys.Ready("a")).Err())
		w.unchanged(func() { require.Empty(t, must(w.topic.Mend(ctx, audit.Violations[0]))) })
		w.publishNow("4", "5", "6")
		w.repeat("a", "1", true)
		require.NotEmpty(t, must(w.topic.Mend(ctx, audit.Violations[0])), "both have moved since")
		require.Equal(t, 7, int(w.Client.LLen(ctx, w.keys.Ready("a")).Val()))
	}, "a")
}
