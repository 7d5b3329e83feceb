package queue_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// transitions are calls of every script that changes messages. Each is on a topic of groups a and b
// in which it has something to do with every key that it declares.
var transitions = map[string]func(w *world) (call func() error){
	"open": func(w *world) func() error {
		return func() error {
			_, err := topicOf(w.Client, w.Prefix, w.topic.Name).Groups(ctx)
			return err
		}
	},
	"register": func(w *world) func() error {
		w.publish(in("x", time.Hour))
		return func() error { return w.topic.Register(ctx, "c", shortLived) }
	},
	"publish": func(w *world) func() error {
		messages := w.make(now("x").with(queue.Options{MaxDeliveries: 1}), in("y", time.Hour).with(queue.Options{DelayID: "y"}))
		return func() error { return w.topic.Publish(ctx, "P", 1, messages) }
	},
	"publish, delayed": func(w *world) func() error {
		messages := w.make(in("x", time.Hour).with(queue.Options{MaxDeliveries: 1, DelayID: "x"}))
		return func() error { return w.topic.Publish(ctx, "P", 1, messages) }
	},
	"publish, recurring": func(w *world) func() error {
		r := w.amend(queue.Put, "s").Record
		messages := w.make(now("x").with(queue.Options{MaxDeliveries: 1}), occurrence("s", w.hour(1), queue.Follows(1, time.Time{}, r.Cursor, w.hour(1), 0)))
		return func() error { return w.topic.Publish(ctx, "P", 1, messages) }
	},
	"amend": func(w *world) func() error {
		w.follow(w.amend(queue.Put, "s").Record, w.hour(1))
		return func() error {
			return only(w.topic.Amend(ctx, queue.Amendment{What: queue.PauseSchedule, Name: "s"}))
		}
	},
	"overlap": func(w *world) func() error {
		return func() error { return only(w.topic.Handle("s", "a", w.hour(1), time.Hour).Begin(ctx, 0, true)) }
	},
	"schedules": func(w *world) func() error {
		return func() error { _, _, _, err := w.topic.Schedules(ctx, "addr|1", []string{"s"}); return err }
	},
	"review": func(w *world) func() error {
		w.follow(w.amend(queue.Put, "s").Record, w.hour(1))
		return func() error { _, err := w.topic.AllSchedules(ctx); return err }
	},
	"claim": func(w *world) func() error {
		w.publishNow("x", "y")
		s := w.sub("a")
		s.claim(1)
		w.suspect("a", 2, "y")
		return run(w, s.group.ClaimCall(s.query(5, idle(9, "channel|1"), counting, signing("a|1"), func(c *queue.Claim) { c.Expiry = time.Hour })))
	},
	"claim, paused": func(w *world) func() error {
		w.publishNow("x", "y")
		s := w.sub("a")
		s.claim(1)
		require.NoError(w.t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		return run(w, s.group.ClaimCall(s.query(5, idle(9, "channel|1"), counting, signing("a|1"), func(c *queue.Claim) { c.Expiry = time.Hour })))
	},
	"claim, with SingleActive": func(w *world) func() error {
		w.takeTurnsIn("c")
		w.publishNow("x", "y")
		s := w.turns("c")
		s.claim(1)
		w.suspect("c", 2, "y")
		return run(w, s.group.ClaimCall(s.query(5, idle(9, "channel|1"), counting, signing("a|1"), func(c *queue.Claim) { c.Expiry = time.Hour })))
	},
	"publish, with SingleActive": func(w *world) func() error {
		w.takeTurnsIn("c")
		w.turns("c").claim(1, idle(1, "channel|1"))
		messages := w.make(now("x").with(queue.Options{MaxDeliveries: 1}), in("y", time.Hour).with(queue.Options{DelayID: "y"}))
		return func() error { return w.topic.Publish(ctx, "P", 1, messages) }
	},
	"promote, with SingleActive": func(w *world) func() error {
		w.publish(in("pending", time.Minute).with(queue.Options{DelayID: "pending"}))
		w.takeTurnsIn("c")
		w.turns("c").claim(1, idle(1, "channel|1"))
		w.travel(2 * time.Minute)
		groups, err := w.topic.Groups(ctx)
		require.NoError(w.t, err)
		return run(w, w.topic.PromoteCall(groups, "channel|1", time.Minute, true))
	},
	"expire, with SingleActive": func(w *world) func() error {
		w.takeTurnsIn("c")
		w.publish(now("x").with(queue.Options{MaxDeliveries: 1}))
		w.turns("c").claim(1)
		w.travel(2 * time.Hour)
		return func() error { _, err := w.topic.Expire(ctx); return err }
	},
	"resume, with SingleActive": func(w *world) func() error {
		w.takeTurnsIn("c")
		require.NoError(w.t, only(w.topic.Pause(ctx, "c", "", "", 0)))
		return func() error { return only(w.topic.Resume(ctx, "c")) }
	},
	"nack, with SingleActive": func(w *world) func() error {
		s, claimed := w.inHandOfTurns()
		return run(w, s.group.NackCalls([]queue.Failure{failed(claimed[0]), failed(claimed[1], after(time.Hour)),
			failed(claimed[2], dead)})...)
	},
	"release, with SingleActive": func(w *world) func() error {
		s, claimed := w.inHandOfTurns()
		return run(w, s.group.ReleaseCalls(claimed, false)...)
	},
	"succeed": func(w *world) func() error {
		w.takeTurnsIn("c")
		w.turns("c").claim(1)
		w.travel(2 * time.Hour)
		return func() error { return only(w.topic.Succeed(ctx, "c")) }
	},
	"stand_down": func(w *world) func() error {
		w.takeTurnsIn("c")
		s := w.turns("c")
		s.claim(1)
		return func() error { return s.group.StandDown(ctx, s.id) }
	},
	"ack": func(w *world) func() error {
		s, claimed := w.inHand()
		w.suspect("a", 1, "1")
		return run(w, s.group.AckCalls(claimed)...)
	},
	"nack": func(w *world) func() error {
		s, claimed := w.inHand()
		return run(w, s.group.NackCalls([]queue.Failure{failed(claimed[0]), failed(claimed[1], after(time.Hour)),
			failed(claimed[2], dead)})...)
	},
	"release": func(w *world) func() error {
		w.publishNow("lost")
		w.suspect("a", 1, "lost")
		s := w.sub("a")
		lost := held(s.claim(1))
		w.expireAll()
		_, claimed := w.inHand()
		return run(w, s.group.ReleaseCalls(append(claimed, lost...), false)...)
	},
	"extend": func(w *world) func() error {
		s, claimed := w.inHand()
		calls := s.group.ExtendCalls(claimed, 2*time.Hour)
		s.group.Attend(calls[0], s.id, queue.Sign("a|1", time.Hour))
		return run(w, calls...)
	},
	"promote": func(w *world) func() error {
		for _, g := range []string{"a", "b"} {
			s, claimed := w.inHand()
			s.nack(failed(claimed[0], dead), failed(claimed[1], after(time.Minute)))
			w.sub(g).claim(2)
		}
		w.publish(in("pending", time.Minute).with(queue.Options{DelayID: "pending"}))
		w.travel(2 * time.Minute)
		groups, err := w.topic.Groups(ctx)
		require.NoError(w.t, err)
		return run(w, w.topic.PromoteCall(groups, "channel|1", time.Minute, true))
	},
	"sign": func(w *world) func() error {
		s, _ := w.inHand()
		s.claim(1, signing("a|1"))
		return func() error { return s.group.Sign(ctx, s.id, queue.Sign("a|1", time.Minute)) }
	},
	"watch": func(w *world) func() error {
		w.inHand()
		return func() error { return only(w.watch()) }
	},
	"disown": func(w *world) func() error {
		w.publishNow("1", "2", "3")
		s := w.gone("a", 3)
		return func() error { return only(w.topic.Disown(ctx, "a", s.id)) }
	},
	"expire": func(w *world) func() error {
		w.publish(now("x").with(queue.Options{MaxDeliveries: 1}), now("y"), now("z"))
		for _, g := range []string{"a", "b"} {
			w.suspect(g, 2, "x")
			s := w.sub(g)
			s.claim(1)
			s.claim(1)
		}
		w.travel(2 * time.Hour)
		return func() error { _, err := w.topic.Expire(ctx); return err }
	},
	"expire, released": func(w *world) func() error {
		w.publishNow("x", "y")
		w.suspect("a", 1, "x")
		held := held(w.sub("a").claim(2))
		return func() error { return only(w.topic.EndLeases(ctx, "a", "channel|1", held)) }
	},
	"purge": func(w *world) func() error {
		w.publish(now("x").with(queue.Options{MaxDeliveries: 1}), now("y"))
		w.die("a", 2)
		w.die("b", 1)
		w.travel(2 * time.Hour)
		return func() error { _, _, err := w.topic.Purge(ctx); return err }
	},
	"remove": func(w *world) func() error {
		w.fill("a")
		return func() error { return w.topic.Remove(ctx, "a") }
	},
	"cancel": func(w *world) func() error {
		w.fill("a")
		w.fillAgain("b", "retried")
		return func() error { return w.topic.Cancel(ctx, operate.Ref{ID: w.id["retried"]}) }
	},
	"reschedule": func(w *world) func() error {
		w.fill("a")
		w.fillAgain("b", "retried")
		return func() error { return w.topic.Reschedule(ctx, operate.Ref{ID: w.id["retried"]}, queue.In(time.Hour)) }
	},
	"seek": func(w *world) func() error {
		w.retries("x", "a", "b")
		return func() error { return only(w.topic.Retrying(ctx, "x")) }
	},
	"recall": func(w *world) func() error {
		w.retries("x", "a", "b")
		return func() error { return w.topic.CancelRetries(ctx, "x") }
	},
	"restore": func(w *world) func() error {
		w.fill("a")
		w.fillAgain("b", "retried")
		w.follow(w.amend(queue.Put, "s").Record, w.hour(1))
		groups := must(w.topic.Groups(ctx))
		d := w.topic.Draft(&queue.RestoreScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", w.keys.Operation("O"),
			"version", groups.Version, "memory", time.Minute, "dry", false)
		d.Each("message", "id", strings.Repeat("0", 26), "body", "x", "own", "delay_id:s%40"+fmt.Sprint(w.hour(1).UnixMilli()-1), "due", w.now()+1000, "free", "", "at", 0, "record", "")
		d.Each("message", "id", strings.Repeat("1", 26), "body", "x", "own", "", "due", w.now()+1000, "free", "", "at", 2, "record", "1 - -")
		return run(w, d.Call())
	},
	"requeue": func(w *world) func() error {
		w.fill("a")
		return func() error { return only(w.topic.Group("a").Requeue(ctx, []string{w.id["dead"]})) }
	},
	"discard": func(w *world) func() error {
		w.fill("a")
		return func() error { return only(w.topic.Group("a").Discard(ctx, []string{w.id["dead"]})) }
	},
	"gather": func(w *world) func() error {
		w.retries("x", "a", "b")
		w.follow(w.amend(queue.Put, "s").Record, w.hour(1))
		return run(w, w.gatherCall(append(w.Client.ZRange(ctx, w.keys.Pending(), 0, -1).Val(), w.id["x"])...))
	},
	"adopt": func(w *world) func() error {
		w.fill("a")
		w.fillAgain("b", "retried")
		return run(w, w.adoptCall(w.id["retried"]))
	},
	"depart": func(w *world) func() error {
		w.retries("x", "a")
		return run(w, w.departCall(w.id["x"]))
	},
	"depart, with a history": func(w *world) func() error {
		w.keepIn("c", dayLong)
		w.publish(in("x", time.Hour))
		return run(w, w.departCall(w.id["x"]))
	},
	"arrive": func(w *world) func() error {
		w.publish(in("x", time.Hour).with(queue.Options{DelayID: "x"}))
		groups := must(w.topic.Groups(ctx))
		d := w.topic.Draft(&queue.ArriveScript, queue.Target{Groups: groups.Names}, "operation", w.keys.Operation("move"),
			"version", groups.Version, "token", "T:1", "latest", w.now()+7_200_000)
		d.Each("message", "id", w.id["x"], "due", fmt.Sprint(w.now()+1000), "free", fmt.Sprint(w.now()+1000), "held", 0)
		return run(w, d.Call())
	},
	"kill": func(w *world) func() error {
		w.publish(in("x", time.Hour).with(queue.Options{DelayID: "x", MaxDeliveries: 1}))
		w.fill("a")
		w.fillAgain("b", "y")
		return func() error { return only(w.topic.Kill(ctx, "a", w.id["x"], "killed")) }
	},
	"kill, in hand": func(w *world) func() error {
		w.fill("a")
		w.suspect("a", 1, "leased")
		return func() error { return only(w.topic.Kill(ctx, "a", w.id["leased"], "killed")) }
	},
	"assign": func(w *world) func() error {
		w.limits()
		return run(w, w.topic.LimitCall("c", &queue.GroupLimit{AtOnce: 5}))
	},
	"ack, with a history": func(w *world) func() error {
		w.keepIn("c", dayLong)
		w.publishNow("x", "y")
		s := w.sub("c")
		w.do(s.group.AckCalls(s.keeping(1))...)
		return run(w, s.group.AckCalls(s.keeping(1))...)
	},
	"cancel, with a history": func(w *world) func() error {
		w.keepIn("c", dayLong)
		w.publish(in("gone", time.Hour), in("x", time.Hour))
		require.NoError(w.t, w.topic.Cancel(ctx, byID(w, "gone")))
		return func() error { return w.topic.Cancel(ctx, byID(w, "x")) }
	},
	"discard, with a history": func(w *world) func() error {
		w.keepIn("c", dayLong)
		w.publishNow("gone", "x")
		s := w.sub("c")
		for _, l := range s.keeping(2) {
			s.nack(failed(l, dead))
		}
		require.NoError(w.t, only(w.topic.Group("c").Discard(ctx, []string{w.id["gone"]})))
		return func() error { return only(w.topic.Group("c").Discard(ctx, []string{w.id["x"]})) }
	},
	"publish, with a history": func(w *world) func() error {
		w.keepIn("c", dayLong)
		named := in("x", time.Hour).with(queue.Options{DelayID: "n"})
		w.publish(named)
		w.publish(in("y", time.Hour).with(queue.Options{DelayID: "n"}))
		messages := w.make(in("z", time.Hour).with(queue.Options{DelayID: "n"}))
		return func() error { return w.topic.Publish(ctx, "P", 1, messages) }
	},
	"register, with a limit": func(w *world) func() error {
		w.limits()
		o := standard
		o.Limit = queue.GroupLimit{AtOnce: 2}
		return func() error { return w.topic.Register(ctx, "c", o) }
	},
	"claim, with a limit": func(w *world) func() error {
		s, claimed := w.limits()
		s.ack(claimed...)
		return run(w, s.group.ClaimCall(s.query(5, woken(5, "channel|5"), counting)))
	},
	"promote, with a limit": func(w *world) func() error {
		w.limits()
		w.travel(time.Minute)
		groups, err := w.topic.Groups(ctx)
		require.NoError(w.t, err)
		return run(w, w.topic.PromoteCall(groups, "channel|1", time.Minute, true))
	},
	"release, with a limit": func(w *world) func() error {
		s, claimed := w.limits()
		return run(w, s.group.ReleaseCalls(claimed, true)...)
	},
	"expire, with a limit": func(w *world) func() error {
		w.limits()
		w.travel(2 * time.Hour)
		return func() error { _, err := w.topic.Expire(ctx); return err }
	},
	"kill, with a limit": func(w *world) func() error {
		_, claimed := w.limits()
		return func() error { return only(w.topic.Kill(ctx, "c", claimed[0].ID, "killed")) }
	},
	"pause": func(w *world) func() error {
		return func() error { return only(w.topic.Pause(ctx, "a", "ann", "", time.Hour)) }
	},
	"resume, over": func(w *world) func() error {
		require.NoError(w.t, only(w.topic.Pause(ctx, "a", "", "", time.Minute)))
		w.travel(2 * time.Minute)
		return func() error { _, _, err := w.topic.EndPauses(ctx); return err }
	},
	"resume": func(w *world) func() error {
		require.NoError(w.t, only(w.topic.Pause(ctx, "a", "", "", 0)))
		return func() error { return only(w.topic.Resume(ctx, "a")) }
	},
	"open_stream": func(w *world) func() error {
		w.retarget(w.Prefix+"-"+w.topic.Name, kept)
		require.NoError(w.t, only(topicOf(w.Client, w.Prefix, w.topic.Name).Groups(ctx))) // it is in the registry
		return func() error { return only(w.topic.Groups(ctx)) }
	},
	"open_stream, again": func(w *world) func() error {
		w.retarget(w.Prefix+"-"+w.topic.Name, kept)
		require.NoError(w.t, only(w.topic.Groups(ctx)))
		w.retarget(w.topic.Name, queue.StreamOptions{MaxLen: 5})
		return func() error { return only(w.topic.Groups(ctx)) }
	},
	"publish, with a stream": func(w *world) func() error {
		w.streaming(kept)
		messages := w.makeEntries(now("x").with(queue.Options{MaxDeliveries: 1}), in("y", time.Hour).with(queue.Options{DelayID: "y"}))
		return func() error { return w.topic.Publish(ctx, "P", 1, messages) }
	},
	"promote_stream": func(w *world) func() error {
		w.streaming(kept)
		w.send(in("pending", time.Minute).with(queue.Options{DelayID: "pending"}),
			in("dead", time.Minute).with(queue.Options{Expiry: queue.Expiry{Lateness: time.Second, Dead: true}}))
		w.travel(2 * time.Minute)
		groups, err := w.topic.Groups(ctx)
		require.NoError(w.t, err)
		return run(w, w.topic.PromoteCall(groups, "channel|1", time.Minute, true))
	},
	"permit": func(w *world) func() error {
		return func() error { return only(new(rights.Permits).Try(ctx, w.topic.Topic, rights.Consuming)) }
	},
	"fault": func(w *world) func() error {
		return func() error { return w.topic.NoteFault(ctx, errors.New("x")) }
	},
	"resign": func(w *world) func() error {
		w.promote("channel|1")
		return run(w, w.topic.ResignCall("channel|1"))
	},
}

// counting has a claim tell of messages.
func counting(c *queue.Claim) {
	c.Counts = queue.Counts{Lateness: queue.Lateness{2: 2, 5: 1}, Latest: 30 * time.Millisecond, LeaseLost: 2, GivenUp: 3}
}

// only is the error of a call.
func only[T any](_ T, err error) error { return err }

// gatherCall returns a call that takes the topic for a move, and reads messages.
func (w *world) gatherCall(ids ...string) *queue.Call {
	groups := must(w.topic.Groups(ctx))
	d := w.topic.Draft(&queue.GatherScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", w.keys.Operation("move"),
		"version", groups.Version, "token", "T:1", "lease", time.Minute, "bytes", 1<<20)
	for _, id := range ids {
		d.Each("message", "id", id)
	}
	return d.Call()
}

// adoptCall returns a call that makes a message of the topic anew, with a delay ID, as dead in a.
func (w *world) adoptCall(id string) *queue.Call {
	groups := must(w.topic.Groups(ctx))
	d := w.topic.Draft(&queue.AdoptScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", w.keys.Operation("move"),
		"version", groups.Version, "token", "T:1", "lease", time.Minute, "hold", 0)
	d.Each("message", "id", id, "body", "x", "own", "delay_id:x", "due", "", "free", fmt.Sprint(w.now()+1000), "held", 1)
	d.Each("place", "at", 1, "kind", "dead", "score", fmt.Sprint(w.now()), "record", "3 - - x")
	return d.Call()
}

// departCall returns a call that takes a message out of the topic, which a move has. The message
// waits, or retries in a.
func (w *world) departCall(id string) *queue.Call {
	require.NoError(w.t, w.Client.Set(ctx, w.keys.Operation("move"), "T:1", time.Minute).Err())
	groups := must(w.topic.Groups(ctx))
	d := w.topic.Draft(&queue.DepartScript, queue.Target{Groups: groups.Names, Window: groups.Window}, "operation", w.keys.Operation("move"),
		"version", groups.Version, "token", "T:1", "memory", queue.OperationMemory, "recorded", groups.Recorded)
	due := ""
	if at := w.Client.ZScore(ctx, w.keys.Pending(), id).Val(); at > 0 {
		due = fmt.Sprintf("%.0f", at)
	}
	d.Each("message", "id", id, "due", due, "held", 0)
	return d.Call()
}

// fillAgain has another group nack a message of fill with a delay.
func (w *world) fillAgain(group, name string) {
	s := w.sub(group)
	for _, m := range held(s.claim(4)) {
		if w.name[m.ID] == name {
			s.nack(failed(m, after(time.Hour)))
		}
	}
}

// unused are keys that a call does not come to.
func unused(name, key string, k queue.Keys) bool {
	script, variant, _ := strings.Cut(name, ", ")
	single := variant == "with SingleActive"
	if strings.HasSuffix(key, ":") { // of a group that does not exist
		return true
	}
	limits := []string{k.Limits(), k.Limited("a"), k.Limited("b"), k.Limited("c")}
	if variant == "with a limit" {
		return !slices.Contains([]string{k.Limits(), k.Limited("c")}, key) // of the others there is another variant
	}
	histories := []string{k.Ended(), k.History("a"), k.History("b"), k.History("c")}
	if variant == "with a history" {
		return !slices.Contains([]string{k.History("c"), k.Ended()}, key) || script == "publish" && key != k.Ended()
	}
	readGroups := slices.Contains([]string{"publish", "cancel", "recall", "amend"}, script) && key == k.Groups() // only with a history
	deleted := script == "remove" && key == k.RestoredRetries("a")                                               // and a history: of any type
	if slices.Contains(histories, key) || readGroups || deleted {
		return true
	}
	switch script { // only with a history
	case "cancel", "recall", "depart":
		if key == k.Counters() || script == "depart" && key == k.Groups() {
			return true
		}
	case "discard":
		if strings.HasPrefix(key, strings.TrimSuffix(k.Stats("a"), "a")) {
			return true
		}
	}
	switch script {
	case "claim", "promote", "release", "expire":
		if slices.Contains(limits, key) {
			return true
		}
	}
	switch script {
	case "claim", "publish", "nack", "release", "promote", "expire", "resume":
		switch {
		case !single && (key == k.Active() || key == k.Standby("a")), script == "release" && !single && key == k.Scheduler():
			return true
		case script == "publish" && (variant != "recurring" && key == k.Schedules() || variant != "with a stream" && key == k.Paused()):
			return true
		case variant == "with a stream" && (key == k.Ready("stream") || key == k.Waiters("stream")):
			return true
		}
	case "ack":
		return key == k.Stats("a") // nothing is dropped
	case "register":
		if slices.Contains([]string{k.Refs(), k.Ready("c"), k.Ready(":c")}, key) { // there is no window
			return true
		}
	}
	switch name {
	case "publish, delayed":
		return slices.Contains([]string{k.Refs(), k.Ready("a"), k.Retry("a"), k.Waiters("a"),
			k.Ready("b"), k.Retry("b"), k.Waiters("b")}, key)
	case "publish, with a stream":
		return key == k.Refs()
	case "release, with SingleActive":
		return key == k.Suspects("c") // no lease was lost
	case "open_stream, again":
		return slices.Contains([]string{k.Messages(), k.Pending()}, key) // as it has a group
	case "claim, paused":
		return slices.Contains([]string{k.Messages(), k.Ready("a"), k.Unack("a"),
			k.Deliveries("a"), k.Dead("a"), k.Suspects("a")}, key)
	}
	return strings.Contains(key, "}:operation:") // a new one each time
}

func run(w *world, calls ...*queue.Call) func() error {
	return func() error { return do(ctx, w.Client, calls...) }
}

// inHand publishes three messages and claims them.
func (w *world) inHand() (*sub, []*queue.Leased) {
	w.publish(now("1").with(queue.Options{MaxDeliveries: 9}), now("2"), now("3"), now("4"))
	s := w.sub("a")
	return s, held(s.claim(3))
}

// takeTurnsIn adds a group with SingleActive.
func (w *world) takeTurnsIn(group string) { w.registerFor(group, exclusively) }

// inHandOfTurns is inHand for a group with SingleActive.
func (w *world) inHandOfTurns() (*sub, []*queue.Leased) {
	w.takeTurnsIn("c")
	w.publishNow("1", "2", "3", "4")
	s := w.turns("c")
	claimed := held(s.claim(3))
	s.claim(2, idle(9, "channel|1"))
	return s, claimed
}

// limits has a group with a limit, of which a subscription holds two messages, and another waits.
func (w *world) limits() (s *sub, claimed []*queue.Leased) {
	w.limitTo("c", queue.GroupLimit{Rate: 1, Burst: 9, AtOnce: 3})
	w.publishNow("k", "l", "m", "n", "o", "p")
	s = w.sub("c")
	claimed = held(s.claim(2, woken(2, "channel|6")))
	w.sub("c").claim(2, woken(2, "channel|7"), patient(100*time.Hour))
	return s, claimed
}

func TestTransitionsAreOfEveryScriptThatChangesMessages(t *testing.T) {
	t.Parallel()
	writes := regexp.MustCompile(`redis\.call\('(DEL|HDEL|HINCRBY|HSET|LPUSH|LSET|LTRIM|RPUSH|SET|UNLINK|XADD|ZADD|ZREM)'`)
	called := map[string]bool{}
	for name := range transitions {
		script, _, _ := strings.Cut(name, ",")
		called[script] = true
	}
	for script, text := range queue.Scripts() {
		switch script {
		case "erase", "mend", "nudge", "single": // they remove or repair, whatever there is
		default:
			require.True(t, called[script] || !writes.MatchString(text), "transitions has no call of %q", script)
		}
	}
}

// Each script checks the types of its keys before it writes, so that it does all or nothing. The
// embedded server takes a minute for all of them.
func TestKeyOfAWrongTypeFailsTheScriptAndChangesNothing(t *testing.T) {
	for name, prepare := range transitions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Real(t, func(t *testing.T, s redistest.Server) {
				worlds := 0
				fresh := func() (*world, func() error) {
					worlds++
					own := s // a prefix of its own, because keys of the others may expire meanwhile
					own.Prefix = fmt.Sprintf("%s.%d.", s.Prefix, worlds)
					w := newWorld(t, own, fmt.Sprint("topic", worlds), "a", "b")
					return w, prepare(w)
				}
				first, call := fresh()
				r := first.record()
				require.NoError(t, call())
				calls := r.take()
				calls = calls[len(calls)-1:] // an operation may have to read the groups first
				keys := len(keysOf(calls[0]))

				for i := range keys {
					w, call := fresh()
					key := w.rename(keysOf(calls[0])[i], first)
					require.NoError(t, w.Client.Del(ctx, key).Err())
					if unused(name, key, w.keys) {
						continue
					}
					if slices.Contains([]string{w.keys.Publisher("P"), w.keys.Claim("SUB1"), w.keys.Handling("s", "a")}, key) {
						require.NoError(t, w.Client.RPush(ctx, key, "wrong").Err())
					} else {
						require.NoError(t, w.Client.Set(ctx, key, "wrong", 0).Err())
					}
					w.unchanged(func() {
						err := call()
						require.ErrorContains(t, err, "WRONGTYPE", key)
						require.ErrorContains(t, err, fmt.Sprintf("the key %q is a ", key))
					})
				}
			})
		})
	}
}

// rename returns the same key of another world.
func (w *world) rename(key string, from *world) string {
	if key == from.topic.Name { // its stream
		return w.topic.Name
	}
	return w.Prefix + ":{" + w.topic.Name + key[len(from.Prefix+":{"+from.topic.Name):]
}

// Commands outside of scripts name the key, too.
func TestKeyOfAWrongTypeIsNamed(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := newWorld(t, s, "topic", "a")
		named := func(key string, calls ...func() error) {
			t.Helper()
			require.NoError(t, w.Client.Del(ctx, key).Err())
			require.NoError(t, w.Client.Set(ctx, key, "wrong", 0).Err())
			for _, call := range calls {
				err := call()
				require.ErrorContains(t, err, "WRONGTYPE")
				require.ErrorContains(t, err, fmt.Sprintf("the key %q ", key))
			}
			require.NoError(t, w.Client.Del(ctx, key).Err())
		}
		find := func() error { return only(w.topic.Find(ctx, operate.Ref{DelayID: "x"})) }
		named(w.keys.Names(), find)
		named(w.keys.Taken(), find)
		named(queue.Registry(w.Prefix),
			func() error { return w.topic.Enroll(ctx) },
			func() error { return w.topic.Delist(ctx) },
			func() error {
				return only(queue.ListedOf(ctx, servers.MustClient(w.Client), w.Prefix, []string{"topic"}))
			},
			func() error {
				return queue.Topics(ctx, servers.MustClient(w.Client), w.Prefix, func(string) {})
			})
		require.NoError(t, w.topic.Enroll(ctx))
	})
}
