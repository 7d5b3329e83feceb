package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A command whose results are lost fails, so that nobody purges what was not exported.
func TestLostOutputIsAFailure(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	w.publish("orders", "a", "die: a reason")
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == 1 })
	for _, command := range []string{"dead export orders", "doctor", "topics", "topics --json", "dead show orders a", "top --json --interval 100ms", "dead purge orders --yes"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var said strings.Builder
		status := run(ctx, strings.Fields(command), system{environment: w.environment(), stdin: strings.NewReader(""), stdout: fullDisk{}, stderr: &said})
		require.NoError(t, ctx.Err(), command)
		cancel()
		require.Equal(t, exitFailed, status, command)
		require.Contains(t, said.String(), "the output could not be written: no space left on device", command)
		require.NotContains(t, said.String(), "Exported", command)
	}
}

// A topic that cannot be read is named, and the others are there.
func TestOneUnreadableTopicHidesNoOther(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	for _, topic := range []string{"alien", "broken", "orders"} {
		w.group(topic, "audit")
		w.publish(topic, "a", "x")
	}
	server.Advance(10 * time.Minute)
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{alien}:meta", "layout", "99").Err())
	require.NoError(t, w.client.Del(t.Context(), "redisdelay:{broken}:ready:audit").Err())
	require.NoError(t, w.client.Set(t.Context(), "redisdelay:{broken}:ready:audit", "text", 0).Err())
	require.NoError(t, w.client.SAdd(t.Context(), "redisdelay:topics", "ghost").Err())
	for command, shown := range map[string]string{"groups ls": "audit", "groups idle": "audit", "workers": "billing", "check": "violation"} {
		status, out, said := w.run("", strings.Fields(command)...)
		require.Equal(t, exitFailed, status, command)
		require.Contains(t, said, `"alien"`, command)
		require.Contains(t, said, `Topic "ghost" does not exist.`, command)
		if command != "workers" { // which reads no messages
			require.Contains(t, out+said, `broken`, command)
		}
		if command != "check" {
			require.Contains(t, out, "orders  "+shown, command)
		} else {
			require.Contains(t, said, "Checked ", command)
			require.NotContains(t, said, "Checked 0", command)
		}
	}
}

// A message that waits is of all groups, so a kill says all that will have the dead letter.
func TestKillOfAWaitingMessageNamesAllGroups(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "audit")
	w.group("orders", "billing")
	w.publish("orders", "later", "x", redisdelay.DelayKey, "1h")
	_, out, _ := w.run("", strings.Fields("msg kill orders later --dry-run")...)
	require.Contains(t, out, `of group "audit, billing" of topic "orders"`)
	status, _, said := w.run("", strings.Fields("msg kill orders later --yes")...)
	require.Zero(t, status, said)
	for _, group := range []string{"audit", "billing"} {
		w.await("orders", group, func(g admin.GroupStats) bool { return g.Dead == 1 })
	}
}

// JSON grows when it is indented: what is cut then is said too.
func TestCutOfIndentedJSONIsSaid(t *testing.T) {
	t.Parallel()
	view := payloadView{as: "auto", cut: 10}
	lines := view.lines(admin.Message{Payload: []byte(`{"a":[1]}`)})
	require.Equal(t, "  … cut; --cut 0 shows all 9 bytes", lines[len(lines)-1])
}

// A repeated import says that it did nothing.
func TestRepeatedImportSaysWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{})
	w := newWorld(t, server.Client(), server.Addr())
	w.group("mails", "billing")
	const died = `,"group":"billing","died_at":"2026-03-04T12:00:00.000Z"}` + "\n"
	first, second := `{"id":"a","uuid":"1"`+died, `{"id":"b","uuid":"2"`+died
	_, out, said := w.run(first, strings.Fields("dead import mails --yes")...)
	require.Equal(t, "Done: import 1 dead letter into topic \"mails\".\n", out, said)
	status, out, said := w.run(first+second, strings.Fields("dead import mails --yes")...)
	require.Zero(t, status)
	require.Equal(t, "Done: import 1 dead letter into topic \"mails\".\n", out)
	require.Equal(t, "1 dead letter left out, imported within the last hour.\n", said)

	// Nothing is done, and nothing noted, about an empty file or one of messages that wait.
	before, _, err := w.admin.Acts(t.Context(), "", 0)
	require.NoError(t, err)
	status, out, said = w.run("", strings.Fields("dead import mails --yes")...)
	require.Zero(t, status)
	require.Equal(t, "Done: import 0 dead letters into topic \"mails\".\n", out, said)
	status, _, said = w.run(`{"id":"c","topic":"mails","state":"waiting","group":"","due":"2026-03-05T12:00:00.000Z","uuid":"3"}`, strings.Fields("dead import mails --every-group --yes")...)
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "line 1 is not an exported dead letter")
	acts, _, err := w.admin.Acts(t.Context(), "", 0)
	require.NoError(t, err)
	require.Equal(t, before, acts)
}

func TestGroupsAndWorkersSayWhoIsActive(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "plain"})
	for range 3 {
		w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "in turns", SingleActive: true})
	}
	w.await("orders", "in turns", func(g admin.GroupStats) bool { return g.Active != "" && g.Standby == 2 })
	w.await("orders", "plain", func(g admin.GroupStats) bool { return g.Subscribed })
	// last returns the last words of the lines about a group.
	last := func(out, group string) (words []string) {
		for line := range strings.Lines(out) {
			if strings.Contains(line, " "+group+" ") {
				words = append(words, strings.TrimSpace(line[strings.LastIndex(line, "  "):]))
			}
		}
		slices.Sort(words)
		return words
	}
	status, out, _ := w.run("", "workers")
	require.Zero(t, status)
	require.Equal(t, []string{"stands by", "stands by", "yes"}, last(out, "in turns"))
	require.Equal(t, []string{"-"}, last(out, "plain"))
	status, out, _ = w.run("", "groups", "ls")
	require.Zero(t, status)
	require.Regexp(t, `in turns .* yes +1 of 3 `, out)
	require.Regexp(t, `plain .* yes +- `, out)
}

// --since and --until choose dead letters by the time they died, as a time and as a duration before
// the server's now.
func TestDeadLettersAreChosenByTime(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: start})
	w := newWorld(t, server.Client(), server.Addr())
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	for i, uuid := range []string{"first", "second", "third"} { // at 12:00, 13:00 and 14:00
		w.publish("orders", uuid, "die: a reason")
		w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == i+1 })
		server.Advance(time.Hour)
	}
	for flags, want := range map[string][]string{
		"--since 90m":                  {"third"},
		"--until 90m":                  {"first", "second"},
		"--since 150m --until 90m":     {"second"},
		"--since 2026-03-04T12:30:00Z": {"second", "third"},
		"--until 2026-03-04T12:30:00Z": {"first"},
		"--since 2026-03-04T12:30:00Z --until 90m --limit 10": {"second"},
	} {
		status, out, said := w.run("", strings.Fields("dead ls orders "+flags)...)
		require.Zero(t, status, said)
		for _, uuid := range []string{"first", "second", "third"} {
			require.Equal(t, slices.Contains(want, uuid), strings.Contains(out, " "+uuid+" "), "%s: %s in\n%s", flags, uuid, out)
		}
	}
	status, _, said := w.run("", strings.Fields("dead purge orders --until 90m --yes")...)
	require.Zero(t, status, said)
	_, out, _ := w.run("", "dead", "ls", "orders")
	require.Contains(t, out, " third ")
	require.NotContains(t, out, " first ")
	require.NotContains(t, out, " second ")
	status, _, said = w.run("", strings.Fields("dead ls orders --since someday")...)
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, `--since: "someday" is no time`)
}

// Names in Chinese, Japanese and Korean take two columns a character on a terminal.
func TestWideCharactersAlign(t *testing.T) {
	t.Parallel()
	o := &output{out: &sink{}}
	table := o.table("TOPIC", "READY")
	table.row(nil, "注文", 7)
	table.row(nil, "orders", 12)
	require.Equal(t, []string{"TOPIC   READY", "注文        7", "orders     12"}, table.lines())
	require.Equal(t, "注…", cut("注文注文", 4))
	require.Equal(t, 4, columns("\x1b[31m注文\x1b[0m"))
}
