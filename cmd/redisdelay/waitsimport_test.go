package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// cancelTo cancels messages with an export, and returns the file.
func (w *world) cancelTo(args ...string) (file string) {
	w.t.Helper()
	file = filepath.Join(w.t.TempDir(), "messages.ndjson")
	status, _, said := w.run("", append(append([]string{"msg", "cancel"}, args...), "--export", file, "--yes")...)
	require.Zero(w.t, status, said)
	return file
}

// imports runs an import, and returns what it printed.
func (w *world) imports(want int, topic, file string) string {
	w.t.Helper()
	status, out, said := w.run("", "msg", "import", topic, file, "--yes")
	require.Equal(w.t, want, status, out+said)
	return out + said
}

func TestManyMessagesAreCancelledAndBroughtBack(t *testing.T) {
	t.Parallel()
	w := wares(t)
	page, err := w.admin.List(t.Context(), "orders", admin.Query{State: admin.Waiting, Whole: true})
	require.NoError(t, err)
	before := page.Messages
	file := filepath.Join(t.TempDir(), "gifts.ndjson")
	status, out, said := w.run("", "msg", "cancel", "orders", "--metadata", "kind=gift", "--export", file, "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, `Done: cancel 6 messages of topic "orders".`)
	require.Contains(t, said, "redisdelay msg import orders "+file)
	require.Len(t, w.waiting("orders"), 3)

	w.publish("orders", "another", "x", redisdelay.DelayKey, "50h", redisdelay.DelayIDKey, "order 1")
	status, out, said = w.run("", "msg", "import", "orders", file, "--dry-run")
	require.Zero(t, status, said)
	require.Contains(t, out, `This would import 5 messages into topic "orders".`)
	require.Contains(t, said, "UUID uuid 1, is left out: ")
	require.Len(t, w.waiting("orders"), 4)
	status, _, said = w.run("", "msg", "import", "orders", file)
	require.Equal(t, exitRefused, status, "nobody can be asked")
	require.Contains(t, said, "say --yes")
	said = w.imports(exitFailed, "orders", file)
	require.Contains(t, said, `Done: import 5 messages into topic "orders".`)
	require.Contains(t, said, `UUID uuid 1, is left out: delay ID "order 1": name is taken`)
	require.Contains(t, said, "1 message left out, as named above")
	said = w.imports(exitFailed, "orders", file)
	require.Contains(t, said, "Done: import 0 messages")
	require.Contains(t, said, "5 messages left out, in the topic already")
	status, _, said = w.run("", "msg", "cancel", "orders", "another", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, w.imports(0, "orders", file), "Done: import 1 message ")

	page, err = w.admin.List(t.Context(), "orders", admin.Query{State: admin.Waiting, Whole: true})
	require.NoError(t, err)
	require.Equal(t, before, page.Messages, "with their IDs and all that they had")
	acts, _, err := w.admin.Acts(t.Context(), "", 0)
	require.NoError(t, err)
	var details []string
	for _, act := range acts {
		if act.Action == "import" {
			details = append(details, act.Detail)
		}
	}
	require.Equal(t, []string{"done: 1 message", "begins with 1 message, file " + file, "done: 5 messages", "begins with 5 messages, file " + file}, details)
}

// A message that was imported and delivered does not come again, with or without a delay ID.
func TestAnImportCanBeRepeatedAfterADelivery(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "billing")
	w.publish("orders", "plain", "x", redisdelay.DelayKey, "1h")
	w.publish("orders", "named", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "order 1", redisdelay.DelayIDWindowKey, "10m")
	file := w.cancelTo("orders", "--all")
	require.Contains(t, w.imports(0, "orders", file), "Done: import 2 messages")
	server.Advance(time.Hour)
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Counters.Acked == 2 })
	server.Advance(50 * time.Minute)
	said := w.imports(0, "orders", file)
	require.Contains(t, said, "Done: import 0 messages")
	require.Contains(t, said, "2 messages left out: an earlier import brought them back, and they have ended or moved to another topic since.")
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Zero(t, stats.Messages)
}

// A body that is empty is a body. What is no whole file is refused before anything changes.
func TestAnImportTellsAnEmptyBodyFromNone(t *testing.T) {
	t.Parallel()
	w := wares(t)
	file := w.cancelTo("orders", "--metadata", "kind=gift")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for without, want := range map[string]string{
		"":         file + ".2 has no messages",
		"\n\n":     file + ".2 has no messages",
		"no body":  "has no body; only a file of msg cancel --export has",
		"no state": "line 6 of " + file + ".2 is not an exported message that waits: it has no id, state or due",
	} {
		other := without
		if bodies := regexp.MustCompile(`,"body(_base64)?":"[^"]*"`); without == "no body" {
			other = bodies.ReplaceAllString(string(text), "")
		} else if without == "no state" {
			at := strings.LastIndex(string(text), `"state":"waiting"`)
			other = string(text[:at]) + string(text[at+len(`"state":"waiting",`):])
		}
		require.NoError(t, os.WriteFile(file+".2", []byte(other), 0o600))
		for _, args := range [][]string{{"msg", "import", "orders", file + ".2"}, {"msg", "reschedule", "orders", "--from", file + ".2", "--in", "1h"}} {
			if status, out, said := w.run("", append(args, "--yes")...); without == "no state" || args[1] == "import" {
				require.Equal(t, exitRefused, status, out+said)
				require.Contains(t, said, want)
			}
		}
	}
	pipe, writes, err := os.Pipe()
	require.NoError(t, err)
	defer pipe.Close()
	_, err = writes.Write(text)
	require.NoError(t, errors.Join(err, writes.Close()))
	status, _, said := w.run("", "msg", "import", "orders", fmt.Sprintf("/dev/fd/%d", pipe.Fd()), "--yes")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "is not a regular file, and it is read more than once: write it to the disk first")
	require.Len(t, w.waiting("orders"), 3)

	empty := regexp.MustCompile(`"body(_base64)?":"[^"]*"`).ReplaceAllString(string(text), `"body":""`)
	require.NoError(t, os.WriteFile(file, []byte(empty), 0o600))
	require.Contains(t, w.imports(0, "orders", file), "Done: import 6 messages")
}

// The delay ID stays taken after the due time as long as the message said.
func TestAnImportRestoresTheWindowOfADelayID(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "billing")
	w.publish("orders", "1", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "order 1", redisdelay.DelayIDWindowKey, "30m")
	w.imports(0, "orders", w.cancelTo("orders", "--all"))
	again := message.NewMessage("2", nil)
	redisdelay.SetDelayID(again, "order 1", redisdelay.DelayIDReject)
	server.Advance(80 * time.Minute)
	require.ErrorIs(t, w.publisher.Publish("orders", again), redisdelay.ErrExists)
	server.Advance(20 * time.Minute)
	require.NoError(t, w.publisher.Publish("orders", again))
}

// A retry comes back in its group alone, with its deliveries and the handler's error.
func TestARetryComesBackInItsGroup(t *testing.T) {
	t.Parallel()
	w := reminders(t)
	status, _, said := w.run("", "msg", "cancel", "orders", "--state", "retrying", "--yes")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "several groups")
	retries := func() (all []admin.Message) {
		for _, g := range []string{"a", "b"} {
			page, err := w.admin.List(t.Context(), "orders", admin.Query{State: admin.Retrying, Group: g, Whole: true})
			require.NoError(t, err)
			all = append(all, page.Messages...)
		}
		return all
	}
	before := retries()
	require.Len(t, before, 2)
	require.Equal(t, 1, before[0].Places[0].Deliveries)
	inA := w.cancelTo("orders", "--state", "retrying", "--group", "a")
	require.Equal(t, before[1:], retries())
	require.Contains(t, w.imports(0, "orders", inA), "Done: import 1 message ")
	require.Equal(t, before, retries())
	require.Contains(t, w.imports(0, "orders", inA), "1 message left out, in the topic already")

	inB := w.cancelTo("orders", "--state", "retrying", "--group", "b")
	require.Len(t, retries(), 1)
	require.Contains(t, w.imports(0, "orders", inB), "Done: import 1 message ")
	require.Equal(t, before, retries())
	require.Empty(t, w.waiting("orders"))
}

// "back" leaves a retry alone that was delivered since the export.
func TestBackLeavesANewerRetryAlone(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "a")
	w.publish("orders", "1", "retry")
	stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "a"})
	w.await("orders", "a", func(s admin.GroupStats) bool { return s.Retrying == 1 })
	stop()
	retry := func() admin.Place {
		page, err := w.admin.List(t.Context(), "orders", admin.Query{State: admin.Retrying, Group: "a"})
		require.NoError(t, err)
		require.Len(t, page.Messages, 1)
		return page.Messages[0].Places[0]
	}
	before := retry()
	file := filepath.Join(t.TempDir(), "retries.ndjson")
	reschedule := func(args ...string) string {
		t.Helper()
		status, out, said := w.run("", append([]string{"msg", "reschedule", "orders", "--state", "retrying", "--yes"}, args...)...)
		require.Zero(t, status, said)
		return out + said
	}
	reschedule("--by", "10m", "--export", file)
	require.Equal(t, before.At.Add(10*time.Minute), retry().At)
	require.Contains(t, reschedule("--from", file), "Done: reschedule 1 message ")
	require.Equal(t, before, retry())

	server.Advance(before.At.Sub(server.Now()))
	stop = w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "a"})
	w.await("orders", "a", func(s admin.GroupStats) bool { return s.Retrying == 1 && s.Counters.Nacked == 2 })
	stop()
	newer := retry()
	require.Equal(t, 2, newer.Deliveries)
	require.Contains(t, reschedule("--from", file), "1 message did not wait for that time any more")
	require.Equal(t, newer, retry())
}

// Messages of a partitioned topic come back into their partitions. Those of one that failed come
// with the next run, and no others with them.
func TestMessagesComeBackIntoTheirPartitions(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	parts, err := partition.Topics("orders", 3)
	require.NoError(t, err)
	before := map[string]map[string]admin.Message{}
	for _, part := range parts {
		w.group(part, "mails")
		for i := range 3 {
			w.publish(part, fmt.Sprint(part, " ", i), "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, fmt.Sprint(part, " ", i))
		}
		before[part] = w.waiting(part)
	}
	file := w.cancelTo("orders", "--all")
	w.publish(parts[1], "another", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, parts[1]+" 1")
	require.Contains(t, w.imports(exitFailed, "orders", file), `Done: import 8 messages into topic "orders" (3 partitions).`)
	require.Contains(t, w.imports(exitFailed, "orders", file), "8 messages left out, in the topic already")
	status, _, said := w.run("", "msg", "cancel", "orders", "another", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, w.imports(0, "orders", file), "Done: import 1 message ")
	for _, part := range parts {
		require.Equal(t, before[part], w.waiting(part))
	}

	// After a rename they come into the partitions with these numbers.
	renamed, err := partition.Topics("shop", 2)
	require.NoError(t, err)
	for _, part := range renamed {
		w.group(part, "mails")
	}
	said = w.imports(exitFailed, "shop", file)
	require.Contains(t, said, `Done: import 6 messages into topic "shop" (2 partitions).`)
	require.Contains(t, said, "3 messages left out, as named above")
	require.Regexp(t, `is left out: partition "shop-p2-\d+": not found`, said)
	require.Len(t, w.waiting(renamed[1]), 3)
}

// The file of --export is an interface. Its fields are in docs/operations.md.
func TestTheFileOfAnExportStaysAsItIs(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "billing")
	at := func(hour int) string { return fmt.Sprintf("2040-01-02T%02d:00:00Z", hour) }
	w.publish("orders", "plain", "text", redisdelay.DelayUntilKey, at(3))
	w.publish("orders", "all", "\xff", redisdelay.DelayUntilKey, at(4), redisdelay.DelayIDKey, "order 1", redisdelay.DelayIDWindowKey, "30m",
		redisdelay.ExpiresAtKey, at(5), redisdelay.OnExpiryKey, "dead", redisdelay.MaxDeliveriesKey, "7", "kind", "gift")
	w.publish("orders", "again", "retry")
	stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Retrying == 1 })
	stop()
	var lines []string
	for _, state := range []string{"waiting", "retrying"} {
		text, err := os.ReadFile(w.cancelTo("orders", "--state", state))
		require.NoError(t, err)
		lines = append(lines, strings.Split(strings.TrimSpace(string(text)), "\n")...)
	}
	for i := range lines {
		lines[i] = regexp.MustCompile(`"id":"\w{26}"`).ReplaceAllString(lines[i], `"id":"ID"`)
		lines[i] = regexp.MustCompile(`"due":"202\d-[^"]*"`).ReplaceAllString(lines[i], `"due":"DUE"`)
	}
	require.Equal(t, []string{
		`{"id":"ID","topic":"orders","state":"waiting","due":"2040-01-02T03:00:00.000Z","uuid":"plain","payload":"text","body":"\u0001\u0006plain\u0000text"}`,
		`{"id":"ID","topic":"orders","state":"waiting","due":"2040-01-02T04:00:00.000Z","uuid":"all","delay_id":"order 1","metadata":{"kind":"gift","max_deliveries":"7"},` +
			`"payload_base64":"/w==","max_deliveries":7,"expires_at":"2040-01-02T05:00:00.000Z","on_expiry":"dead",` +
			`"body_base64":"AQRhbGwFCGRlbGF5X2lkB29yZGVyIDEKZXhwaXJlc19hdBQyMDQwLTAxLTAyVDA1OjAwOjAwWgRraW5kBGdpZnQObWF4X2RlbGl2ZXJpZXMBNwlvbl9leHBpcnkEZGVhZP8=",` +
			`"options":"max_deliveries:7 delay_id:order+1 window:1800000","delay_id_until":"2040-01-02T04:30:00.000Z"}`,
		`{"id":"ID","topic":"orders","state":"retrying","group":"billing","due":"DUE","uuid":"again","payload":"retry","body":"\u0001\u0006again\u0000retry","record":"1 - -"}`,
	}, lines)
}
