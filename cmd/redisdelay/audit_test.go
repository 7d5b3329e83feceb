package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// acts returns what the audit log has, the oldest first.
func (w *world) acts() (all []admin.Act) {
	w.t.Helper()
	newest, _, err := w.admin.Acts(w.t.Context(), "", 1000)
	require.NoError(w.t, err)
	for i := range newest {
		did := newest[len(newest)-1-i]
		require.WithinDuration(w.t, newest[0].At, did.At, time.Hour)
		did.At = time.Time{}
		all = append(all, did)
	}
	return all
}

// Each command that changes something is in the log: by whom, what, and how many. A dry run, a
// refusal and a look are not.
func TestActsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	w, _ := shop(t, time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC))
	w.recur(w.fromFile("testdata/schedules.yaml")...)
	held := w.id("orders", "held")
	for _, command := range []string{
		"pause orders --why deploy", "resume orders", "resume orders", // the second finds nothing
		"groups limit orders billing --rate 50/s --at-once 5 --why deal", "groups limit orders billing --lift", "groups limit orders billing --reset --why over",
		"groups limit orders billing --reset", "groups limit orders billing", "groups limit orders nobody --at-once 1", // two find nothing
		"groups history orders billing --keep 24h --max 500 --why lost", "groups history orders billing --off", "groups history orders billing --reset",
		"groups history orders billing", "history orders",
		"dead requeue orders --group billing --reason down --limit 1 --dry-run", "dead move orders --group billing --to mails --reason down --limit 1 --over 10m --yes",
		"dead purge orders --group billing", // nobody agrees
		"dead purge orders --group billing no-such-id --yes", "dead purge orders --group billing --yes",
		"msg reschedule orders waiting --in 2h", "msg cancel orders waiting --yes", "msg kill orders held --group billing --yes",
		"groups rm orders audit --yes", "msg now orders later",
		"publish orders --in 1m --uuid new", "schedules pause reports clean-up", "schedules run reports clean-up --yes --wait 10ms", "schedules resume reports clean-up",
		"schedules rm reports daily-report --yes", "topics rm oders --yes", "pause nowhere",
		"topics", "check", "doctor", "audit", "schedules ls", "msg ls orders",
	} {
		w.run("", append(strings.Fields(command), "--as", "ann")...)
	}
	var said []string
	for _, did := range w.acts() {
		require.Equal(t, "ann", did.By)
		text := did.Action + " " + did.Topic
		for _, part := range []string{did.Group, did.Schedule, did.Detail} {
			if part != "" {
				text += " | " + part
			}
		}
		if did.MessageID == held {
			text += " held"
		}
		if did.Error != "" {
			text += " failed"
		}
		said = append(said, text)
	}
	require.Equal(t, []string{
		"pause orders | until resume: deploy", "resume orders",
		"limit orders | billing | 50/s, burst 5, 5 at once: deal", "lift-limit orders | billing", "reset-limit orders | billing | over",
		"limit orders | nobody | 1 at once failed",
		"keep-history orders | billing | 24h0m0s, 500 messages: lost", "keep-history orders | billing | no history", "reset-history orders | billing",
		`move orders | billing | begins with 1 dead letter, to "mails", reason contains "down", over 10m0s`, "move orders | billing | done: 1 dead letter",
		"purge orders | billing failed",
		"purge orders | billing | begins with 2 dead letters", "purge orders | billing | done: 2 dead letters",
		"reschedule orders | in 2h, due was 2026-03-04T12:15:00.000Z", "cancel orders | due was 2026-03-04T14:05:10.000Z", "kill orders | billing | by ann held",
		"remove-group orders | audit | done: 5 messages", "deliver-now orders | due was 2026-03-04T12:16:30.000Z",
		"publish orders | 0 bytes, UUID new", "pause-schedule reports | clean-up | until resume; 1 waiting occurrence taken back", "run-schedule reports | clean-up",
		"resume-schedule reports | clean-up", "remove-schedule reports | daily-report | done: 1 waiting occurrence",
		"remove-topic oders | done: 1 message", "pause nowhere | until resume failed",
	}, said)

	status, out, _ := w.run("", "audit", "--topic", "oders")
	require.Zero(t, status)
	require.Contains(t, out, "remove-topic")
	require.NotContains(t, out, "orders")
	_, out, errs := w.run("", "audit", "--by", "bob")
	require.Empty(t, out)
	require.Contains(t, errs, "Nothing of that is among the 26 acts in the audit log.")
	_, out, errs = w.run("", "audit", "--limit", "2", "--json")
	require.Equal(t, 2, strings.Count(out, "\n"))
	require.Contains(t, errs, "There are more")
	status, _, _ = w.run("", "pause", "orders")
	require.Zero(t, status)
	acts := w.acts()
	require.Equal(t, whoami(), acts[len(acts)-1].By)
}

// An act that cannot be recorded is done, and the tool says that it is not in the log.
func TestAnActCountsWithoutTheAuditLog(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.group("orders", redisdelay.DefaultConsumerGroup)
	require.NoError(t, w.client.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-xadd").Err())
	environment := []string{"REDISDELAY_REDIS=" + server.Addr(), "REDISDELAY_REDIS_USERNAME=app", "REDISDELAY_REDIS_PASSWORD=secret"}
	var out, errs strings.Builder
	require.Zero(t, run(t.Context(), []string{"pause", "orders"}, system{environment: environment, stdin: strings.NewReader(""), stdout: &out, stderr: &errs}))
	require.Contains(t, out.String(), "is paused")
	require.Contains(t, errs.String(), "This is not in the audit log: ")
	require.Contains(t, errs.String(), "+xadd")
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.NotNil(t, stats.Pause)
}
