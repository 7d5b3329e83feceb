package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// finds runs find with --json, and returns the messages and the last object.
func (w *world) finds(args ...string) (status int, messages []admin.Message, where found, said string) {
	w.t.Helper()
	status, out, said := w.run("", append([]string{"find", "--json"}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines[:len(lines)-1] {
		var m admin.Message
		require.NoError(w.t, json.Unmarshal([]byte(line), &m), line)
		messages = append(messages, m)
	}
	require.NoError(w.t, json.Unmarshal([]byte(lines[len(lines)-1]), &where), out+said)
	require.Equal(w.t, len(messages), where.Found)
	return status, messages, where, said
}

// lost are the messages of the tests of find: one in each state of a group.
var lost = map[string]string{"waiting": "later", "ready": "now", "in hand": "hold", "retrying": "retry", "dead": "die: no address"}

// lose publishes them to a topic, whose group gets none after that.
func (w *world) lose(topic string) {
	w.t.Helper()
	w.subscribe(topic, redisdelay.SubscriberConfig{ConsumerGroup: "mails", MaxInFlight: 10, LeaseDuration: time.Hour})
	publish := func(state string, metadata ...string) {
		w.publish(topic, "uuid "+state, lost[state]+" of order 4711", append(metadata, "of", topic+" "+state,
			partition.KeyMetadata, "customer "+state, redisdelay.DelayIDKey, "order 4711 "+state)...)
	}
	for _, state := range []string{"in hand", "retrying", "dead"} {
		w.publish(topic, "uuid "+state, strings.TrimSuffix(lost[state], ": no address")+map[bool]string{true: ": no address of order 4711"}[state == "dead"],
			"of", topic+" "+state, partition.KeyMetadata, "customer "+state, redisdelay.DelayIDKey, "order 4711 "+state)
	}
	w.await(topic, "mails", func(g admin.GroupStats) bool { return g.Dead == 1 && g.Retrying == 1 && g.InHand == 1 })
	_, err := w.admin.Pause(w.t.Context(), topic, admin.PauseOptions{})
	require.NoError(w.t, err)
	publish("ready")
	publish("waiting", redisdelay.DelayKey, "1h")
}

// The tool finds a message in each state by each handle, in a plain topic and in a partition.
func TestFind(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	parts, err := partition.Topics("orders", 2)
	require.NoError(t, err)
	w.group(parts[0], "mails")
	for topic, named := range map[string]string{"reminders": "reminders", parts[1]: "orders"} {
		w.lose(topic)
		for state := range lost {
			status, messages, where, said := w.finds("of="+topic+" "+state, "--by", "metadata")
			require.Zero(t, status, said)
			require.Len(t, messages, 1, said)
			m := messages[0]
			require.Equal(t, topic, m.Topic)
			require.Equal(t, strings.ReplaceAll(state, " ", "_"), string(m.Places[0].State))
			require.Equal(t, admin.SearchComplete, where.Ended)
			for _, args := range [][]string{{m.ID}, {m.ID, "--by", "id"}, {"uuid " + state}, {"uuid " + state, "--by", "uuid"}, {"order 4711 " + state},
				{"order 4711 " + state, "--by", "delay-id"}, {"customer " + state, "--by", "key"}, {"customer " + state}, {"--metadata", "of=" + topic + " " + state},
				{string(m.Payload), "--by", "text", "--metadata", "of=" + topic + " " + state}} {
				status, messages, where, said := w.finds(append(args, "--topic", named)...)
				require.Zero(t, status, said)
				require.Len(t, messages, 1, "%q: %s", args, said)
				require.Equal(t, m.ID, messages[0].ID)
				if args[0] == m.ID {
					require.Contains(t, said, "No message had to be read.")
					continue
				}
				require.Equal(t, 5, where.Looked)
				require.Contains(t, said, "1 waiting, 1 ready, 1 in hand, 1 retrying, 1 dead")
			}
		}
	}
	status, messages, where, said := w.finds("4711")
	require.Zero(t, status)
	require.Len(t, messages, 10)
	require.Len(t, where.Topics, 3)
	require.Contains(t, said, "Looked at 10 messages in 3 topics")
}

// A message that ended is found no more, and every command says the same about it.
func TestCommandsSayTheSameAboutAMessageThatEnded(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.publish("orders", "gone", "x", redisdelay.DelayKey, "1h")
	id := w.id("orders", "gone")
	require.NoError(t, w.admin.Cancel(t.Context(), "orders", admin.ByID(id)))
	const known = "it was acked, dropped as too late, cancelled, replaced or deleted, or it never was there"
	for _, args := range []string{"msg get orders %s", "msg cancel orders %s --yes", "msg now orders %s", "msg reschedule orders %s --in 1h", "msg kill orders %s --yes",
		"dead show orders %s", "find %s --by id", "find %s", "msg get orders %s --by id", "msg now orders %s --by id"} {
		status, _, said := w.run("", strings.Fields(fmt.Sprintf(args, id))...)
		require.Equal(t, exitFailed, status, args)
		require.Contains(t, said, known, args)
	}
}

// find ends at its bounds, says what it left out, and goes on from there.
func TestFindIsBounded(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	for i := range 9 {
		w.publish(fmt.Sprint("topic ", i%3), fmt.Sprint("uuid ", i), "order 4711", redisdelay.DelayKey, "1h")
	}
	for _, bound := range []string{"--limit=2", "--most=2"} {
		ids, args := map[string]bool{}, []string{"4711", bound}
		for {
			_, messages, where, said := w.finds(args...)
			require.LessOrEqual(t, len(messages), 2)
			for _, m := range messages {
				require.False(t, ids[m.ID])
				ids[m.ID] = true
			}
			if where.Next == "" {
				break
			}
			require.Contains(t, said, "Left out of")
			_, on, found := strings.Cut(strings.TrimSpace(said), "To go on: ")
			require.True(t, found, said)
			args = shellWords(t, on)[2:]
			require.Len(t, args, 3, "one cursor")
		}
		require.Len(t, ids, 9)
	}
	for args, why := range map[string]string{"": "name what to find", "x --by y": "--by is", "x --limit 0": "--limit is 0", "x --most 0": "--most is 0", "x --by metadata": "key=value",
		"x --limit 1001": "--limit is 1001", "--by id": "name what to find", "x --cursor y": "no Cursor of a search"} {
		status, _, said := w.run("", append([]string{"find"}, strings.Fields(args)...)...)
		require.Equal(t, exitRefused, status, "%s: %s", args, said)
		require.Contains(t, said, why)
	}
	status, _, said := w.run("", "find", "")
	require.Equal(t, exitRefused, status, said)
	status, _, said = w.run("", "find", "x", "--topic", "topics")
	require.Equal(t, exitFailed, status, said)
	require.Contains(t, said, `topic "topics": not found`)
}

// Ctrl-C ends find, which prints what it has found.
func TestFindIsInterrupted(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.publish("a", "found", "order 4711", redisdelay.DelayKey, "1h")
	w.publish("b", "missed", "order 4711", redisdelay.DelayKey, "1h")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	a := newApp(system{environment: w.environment()})
	client := redis.NewClient(&redis.Options{Addr: w.addr})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if args := fmt.Sprint(cmds[0].Args()); strings.Contains(args, "{b}:pending") && strings.Contains(args, " zset ") { // the first page
			interrupt()
			return context.Canceled
		}
		return next()
	}))
	a.client = client
	var out, said strings.Builder
	a.sys.stdout, a.sys.stderr = &out, &said
	a.root.SetArgs([]string{"find", "4711"})
	err := a.root.ExecuteContext(ctx)
	require.True(t, errors.Is(err, context.Canceled), err)
	require.Contains(t, out.String(), "found")
	require.NotContains(t, out.String(), "missed")
	require.Contains(t, said.String(), `Left out of topic "b": what was not reached: the search was stopped before`)
	require.Contains(t, said.String(), "To go on: redisdelay")
}

// The tool finds what became of a message in the histories of groups, of a plain topic and of
// partitions.
func TestFindSaysHowAMessageEnded(t *testing.T) {
	t.Parallel()
	parts, err := partition.Topics("orders", 2)
	require.NoError(t, err)
	for topic, named := range map[string]string{"reminders": "reminders", parts[1]: "orders"} {
		w := emptyWorld(t)
		for _, plain := range map[string][]string{"reminders": {"reminders"}, "orders": parts}[named] {
			w.group(plain, "mails")
		}
		run := func(want int, args ...string) string {
			t.Helper()
			status, out, said := w.run("", args...)
			require.Equal(t, want, status, "%s: %s", args, said)
			return out + said
		}
		require.Contains(t, run(exitFailed, "find", "order 4711"), "No group keeps a history of messages that ended; turn it on: redisdelay groups history TOPIC GROUP --keep 24h")
		run(0, "groups", "history", named, "mails", "--keep", "24h")
		w.subscribe(topic, redisdelay.SubscriberConfig{ConsumerGroup: "mails"})
		w.publish(topic, "uuid of it", "x", redisdelay.DelayIDKey, "order 4711")
		require.Eventually(t, func() bool {
			page, err := w.admin.History(t.Context(), topic, admin.HistoryFilter{})
			return err == nil && len(page.Ended) == 1
		}, 20*time.Second, time.Millisecond)
		page, err := w.admin.History(t.Context(), topic, admin.HistoryFilter{})
		require.NoError(t, err)
		line := page.Ended[0]
		for _, args := range []string{"order 4711", "order 4711|--by|delay-id", "uuid of it", "uuid of it|--by|uuid", line.ID, line.ID + "|--by|id", line.ID + "|--topic|" + named} {
			said := run(0, append([]string{"find"}, strings.Split(args, "|")...)...)
			require.Regexp(t, topic+` +acked +mails .*`+line.ID+` .*acked \S+ \S+ by \S+ pid \d+ after 1 delivery, the last one took`, said, args)
			require.NotContains(t, said, "nil", args)
			require.Contains(t, said, "Looked up the name in 1 line of histories.", args)
			status, messages, where, _ := w.finds(strings.Split(args, "|")...)
			require.Zero(t, status)
			require.Empty(t, messages)
			require.Len(t, where.Past, 1)
			require.Equal(t, []string{topic, "acked", line.ID}, []string{where.Past[0].Topic, where.Past[0].How, where.Past[0].ID})
		}
		require.Contains(t, run(exitFailed, "find", "order 4712"), "Looked up the name in 1 line of histories.")
		require.Contains(t, run(exitFailed, "find", "x", "--by", "text"), "Histories were not read: they have no metadata and no payloads.")
		run(0, "groups", "history", named, "mails", "--off")
		require.Contains(t, run(0, "find", "order 4711"), "acked", "a line stays for a while")
	}
}
