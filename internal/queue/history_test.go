package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	watermill "github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// dayLong is a history that keeps all that a test does.
var dayLong = queue.History{For: 24 * time.Hour, Max: 1000}

// keepIn registers a group with a history.
func (w *world) keepIn(group string, h queue.History, edits ...func(*queue.GroupOptions)) {
	w.t.Helper()
	o := standard
	o.History = h
	for _, edit := range edits {
		edit(&o)
	}
	require.NoError(w.t, w.topic.Register(ctx, group, o))
	w.topic.Forget(must(w.topic.Groups(ctx)))
}

// keeping has the handle of a subscription settle as one that knows of the history.
func (s *sub) keeping(limit int) []*queue.Leased {
	got := s.claim(limit)
	s.group.Group = s.group.Keeping(got.History)
	leased := held(got)
	for _, l := range leased {
		l.UUID = "uuid of " + string(l.Body)
	}
	return leased
}

// ended returns the lines of a group, oldest first, as "<name> <how>"; "" is the topic's own.
func (w *world) ended(group string) (lines []string) {
	w.t.Helper()
	for _, e := range w.history(group) {
		lines = append(lines, w.name[e.ID]+" "+e.How)
	}
	return lines
}

func (w *world) history(group string) (lines []queue.Ended) {
	w.t.Helper()
	newest, err := w.topic.EndedBefore(ctx, group, "", "", 10_000)
	require.NoError(w.t, err)
	for i := range newest {
		lines = append(lines, newest[len(newest)-1-i])
	}
	return lines
}

func TestEachMessageThatEndsLeavesALine(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.keepIn("a", dayLong)
		s := w.sub("a")
		w.publish(now("acked").with(queue.Options{DelayID: "order 4711"}))
		w.pass(5 * time.Millisecond)
		began := w.now()
		leased := s.keeping(1)
		s.ack(leased...)
		line := w.history("a")[0]
		require.Equal(t, []string{"acked acked"}, w.ended("a"))
		require.Equal(t, w.id["acked"], line.ID)
		require.Equal(t, "uuid of acked", line.UUID)
		require.Equal(t, "order 4711", line.DelayID)
		require.Equal(t, leased[0].Due, line.Due)
		require.GreaterOrEqual(t, line.First.UnixMilli(), began)
		require.Equal(t, line.First, line.Last)
		require.False(t, line.At.Before(line.Last))
		require.Equal(t, 1, line.Deliveries)
		require.NotEmpty(t, line.Host)
		require.Positive(t, line.PID)

		w.publishNow("dropped")
		w.do(s.group.DropCalls(s.keeping(1))...)
		w.publishNow("deleted", "purged")
		s.nack(failed(s.keeping(1)[0], dead))
		require.Equal(t, 1, must(w.topic.Group("a").Discard(ctx, []string{w.id["deleted"]})))
		s.nack(failed(s.keeping(1)[0], dead))
		require.Equal(t, []string{"acked acked", "dropped dropped", "deleted deleted"}, w.ended("a"), "a dead letter has not ended")
		w.travel(2 * time.Hour)
		_, _, err := w.topic.Purge(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"acked acked", "dropped dropped", "deleted deleted", "purged purged"}, w.ended("a"))
		last := w.history("a")[3]
		require.Equal(t, 1, last.Deliveries)
		require.False(t, last.First.IsZero(), "the nack has noted it")
		require.Empty(t, last.Host)
		require.Empty(t, w.ended(""))
	})
}

func TestTheFirstDeliveryIsKnownOverRetriesExpiriesAndRequeues(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.keepIn("a", dayLong)
		s := w.sub("a")
		w.publishNow("x")
		first := s.keeping(1)[0]
		due, began := first.Due, queue.LeasedAt(first.Token)
		s.nack(failed(first, after(time.Millisecond), func(f *queue.Failure) { f.DelayedFor = "1ms" }))
		w.pass(5 * time.Millisecond)
		w.promote("s|1")
		again := s.keeping(1)[0]
		require.Equal(t, "1ms", again.DelayedFor, "what the record has besides is not told to handlers")
		w.expireAll()
		s.nack(failed(s.keeping(1)[0], dead))
		require.Equal(t, 1, must(w.topic.Group("a").Requeue(ctx, []string{w.id["x"]})))
		w.promote("s|1")
		w.pass(3 * time.Millisecond)
		last := s.keeping(1)[0]
		require.True(t, last.Requeued)
		s.ack(last)
		line := w.history("a")[0]
		require.Equal(t, due, line.Due)
		require.Equal(t, began, line.First)
		require.Equal(t, queue.LeasedAt(last.Token), line.Last)
		require.Equal(t, 1, line.Deliveries, "counted from the requeue")
	})
}

func TestWhatEndsBeforeAGroupHasItIsInTheTopicsOwnHistory(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("plain")
		w.keepIn("a", queue.History{For: time.Hour, Max: 7})
		w.keepIn("b", queue.History{For: 2 * time.Hour, Max: 5})
		w.publish(in("cancelled", time.Hour), in("old", time.Hour).with(queue.Options{DelayID: "n"}))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "cancelled")))
		w.publish(in("new", time.Hour).with(queue.Options{DelayID: "n"}))
		require.Equal(t, []string{"cancelled cancelled", "old replaced"}, w.ended(""))
		old := w.history("")[1]
		require.Equal(t, w.id["new"], old.By)
		require.Equal(t, "n", old.DelayID)
		require.Equal(t, w.now()/3_600_000, old.Due.UnixMilli()/3_600_000-1)
		require.Empty(t, w.ended("a"))
		ttl := w.Client.PTTL(ctx, w.keys.Ended()).Val()
		require.InDelta(t, float64(2*time.Hour), float64(ttl), float64(time.Minute), "the longest of its groups")

		// A retry is in one group, and so is its line.
		w.publish(now("retrying").with(queue.Options{DelayID: "r"}))
		s := w.sub("a")
		s.nack(failed(s.keeping(1)[0], after(time.Hour)))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "retrying")))
		require.Equal(t, []string{"retrying cancelled"}, w.ended("a"))
		require.Empty(t, w.ended("b"))
	})
}

func TestAHistoryIsBoundedByTimeAndNumber(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.keepIn("a", queue.History{For: time.Minute, Max: 150})
		s := w.sub("a")
		for i := range 4 {
			w.publishNow(names("%d", i*100, i*100+100)...)
			s.ack(s.keeping(100)...)
		}
		n := len(w.history("a"))
		require.GreaterOrEqual(t, n, 150)
		require.LessOrEqual(t, n, 250, "the server removes a hundred at a time")
		require.Equal(t, "399 acked", w.ended("a")[n-1])
		require.InDelta(t, float64(time.Minute), float64(w.Client.PTTL(ctx, w.keys.History("a")).Val()), float64(5*time.Second))
		if w.Mini != nil {
			w.Mini.FastForward(2 * time.Minute)
			require.Empty(t, w.history("a"), "without another line all go in time")
		}
	})
}

func TestWithoutAHistoryNothingIsWritten(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		r := w.record()
		s := w.sub("a")
		w.publish(now("acked"), now("retried"), in("cancelled", time.Hour), in("old", time.Hour).with(queue.Options{DelayID: "n"}))
		leased := s.keeping(2)
		s.ack(leased[0])
		s.nack(failed(leased[1], after(time.Hour)))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "cancelled")))
		w.publish(in("new", time.Hour).with(queue.Options{DelayID: "n"}))
		require.Equal(t, "1 - -", w.Client.HGet(ctx, w.keys.Deliveries("a"), w.id["retried"]).Val())
		require.Zero(t, w.Client.Exists(ctx, w.keys.Ended(), w.keys.History("a")).Val())
		require.Equal(t, queue.Layout, w.Client.HGet(ctx, w.keys.Meta(), "layout").Val())
		r.take()
	})
}

func TestAnOperatorSetsAHistoryAndOlderVersionsRefuseTheTopic(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.register("a")
		s := w.sub("a")
		w.publishNow("before", "after", "last")
		s.ack(s.keeping(1)...)
		_, after, err := w.topic.SetHistory(ctx, "a", &dayLong)
		require.NoError(t, err)
		require.Equal(t, dayLong, after.KeptHistory())
		require.Equal(t, "2 history", w.Client.HGet(ctx, w.keys.Meta(), "layout").Val())
		s.ack(s.keeping(1)...)
		require.Equal(t, []string{"after acked"}, w.ended("a"))
		w.register("a") // a subscriber that asks for none does not end it
		_, after, err = w.topic.SetHistory(ctx, "a", &queue.History{})
		require.NoError(t, err)
		require.Zero(t, after.KeptHistory())
		s.ack(s.keeping(1)...)
		require.Equal(t, []string{"after acked"}, w.ended("a"))
		_, after, err = w.topic.SetHistory(ctx, "a", nil)
		require.NoError(t, err)
		require.Nil(t, after.SetHistory)
		_, _, err = w.topic.SetHistory(ctx, "none", nil)
		require.ErrorIs(t, err, queue.ErrNotFound)

		require.NoError(t, w.topic.Remove(ctx, "a"))
		require.Zero(t, w.Client.Exists(ctx, w.keys.History("a")).Val(), "it goes with its group")
	})
}

func TestUUIDsAreReadFromTheBodiesOfEachMarshaler(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.keepIn("a", dayLong)
		requireUUID := func(body, uuid string) {
			t.Helper()
			w.publish(in(body, time.Hour))
			require.NoError(t, w.topic.Cancel(ctx, byID(w, body)))
			lines := w.history("")
			require.Equal(t, uuid, lines[len(lines)-1].UUID, fmt.Sprintf("%.40q", body))
		}
		for _, uuid := range []string{"2f8e4a61-94d7-4c52-9b1c-6f0e1d3a5b70", "00000000-0000-0000-0000-00000000000a", "abcd", "", strings.Repeat("u", 200)} {
			for _, m := range []redisdelay.Marshaler{redisdelay.BinaryMarshaler{}, redisdelay.JSONMarshaler{}, redisdelay.StreamMarshaler{}} {
				msg := watermill.NewMessage(uuid, []byte("payload"))
				msg.Metadata.Set("kind", "gift")
				requireUUID(string(must(m.Marshal("topic", msg))), uuid)
			}
		}
		requireUUID("of another Marshaler", "")
		requireUUID(strings.Repeat("x", 2<<20), "")
	})
}

// A user who lacks the commands of a history has each call succeed, and what fails is counted.
func TestAHistoryFailsNoCallOfAUserWithoutItsCommands(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.keepIn("a", dayLong)
		user := fmt.Sprint("user", time.Now().UnixNano())
		owner := w.Client
		require.NoError(t, owner.Do(ctx, "ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all", "-hstrlen", "-pexpire", "-xadd", "-xlen", "-xtrim").Err())
		t.Cleanup(func() { owner.Do(ctx, "ACL", "DELUSER", user) })
		o := *owner.(*redis.Client).Options()
		o.Username, o.Password = user, "secret"
		plain := redis.NewClient(&o)
		t.Cleanup(func() { _ = plain.Close() })
		w.Client, w.topic = plain, topicOf(plain, w.Prefix, "topic")

		w.publish(in("cancelled", time.Hour), in("old", time.Hour).with(queue.Options{DelayID: "n"}))
		require.NoError(t, w.topic.Cancel(ctx, byID(w, "cancelled")))
		w.publish(in("new", time.Hour).with(queue.Options{DelayID: "n"}))
		require.Equal(t, "2", owner.HGet(ctx, w.keys.Counters(), "history_failed").Val())

		w.publishNow("acked", "deleted", "purged")
		s := w.sub("a")
		require.Equal(t, 1, s.ack(s.keeping(1)...))
		s.nack(failed(s.keeping(1)[0], dead))
		s.nack(failed(s.keeping(1)[0], dead))
		require.Equal(t, 1, must(w.topic.Group("a").Discard(ctx, []string{w.id["deleted"]})))
		w.travel(2 * time.Hour)
		_, _, err := w.topic.Purge(ctx)
		require.NoError(t, err)
		require.Equal(t, "3", owner.HGet(ctx, w.keys.Stats("a"), "history_failed").Val())
		require.Zero(t, owner.Exists(ctx, w.keys.History("a"), w.keys.Ended()).Val())
	})
}

func TestALargeCallLeavesAHistoryWithinItsBounds(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.keepIn("a", queue.History{For: time.Hour, Max: 100})
		w.replace(300)
		require.Len(t, w.history(""), 100)
		require.Equal(t, w.id["299 of 0"], w.history("")[99].ID, "the newest stay")
	})
}

func TestALargeHistoryStaysWithinItsBounds(t *testing.T) {
	onReal(t, func(t *testing.T, w *world) {
		w.keepIn("a", queue.History{For: time.Hour, Max: 12_000})
		w.replace(12_000, 12_000, 12_000)
		require.LessOrEqual(t, w.Client.XLen(ctx, w.keys.Ended()).Val(), int64(12_100))
	})
}

// replace publishes so many messages with delay IDs, and replaces them.
func (w *world) replace(sizes ...int) {
	w.t.Helper()
	for call := range len(sizes) + 1 {
		messages := make([]message, sizes[max(call-1, 0)])
		for i := range messages {
			messages[i] = in(fmt.Sprintf("%d of %d", i, call), time.Hour).with(queue.Options{DelayID: fmt.Sprint("n", i)})
		}
		w.publish(messages...)
	}
}

func TestAKilledMessageKeepsItsTimes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.keepIn("a", dayLong)
		w.publishNow("in hand")
		leased := w.sub("a").keeping(1)[0]
		w.publish(in("waiting", time.Hour))
		w.publishNow("ready")
		for i, name := range []string{"in hand", "waiting", "ready"} {
			w.kill("a", name)
			require.Equal(t, 1, must(w.topic.Group("a").Discard(ctx, []string{w.id[name]})))
			line := w.history("a")[i]
			require.False(t, line.Due.IsZero(), name)
			if name == "in hand" {
				require.Equal(t, leased.Due, line.Due)
				require.Equal(t, queue.LeasedAt(leased.Token), line.First)
				require.Equal(t, line.First, line.Last)
			}
		}
	})
}
