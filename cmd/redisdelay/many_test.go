package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// Each operation on dead letters is a command, with the flags that its row in the table has.
func TestCommandsAreThoseOfTheTableOfOperations(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	w.publish("other", "x", "x")
	found := 0
	others := map[string]string{"remove-group": "groups rm", "remove-topic": "topics rm", "remove-schedule": "schedules rm",
		"cancel": "msg cancel", "reschedule": "msg reschedule", "deliver-now": "msg now"}
	for _, op := range admin.Operations() {
		if op.State != admin.Dead {
			status, help, said := w.run("", append(strings.Fields(others[op.Name]), "--help")...)
			require.Zero(t, status, said)
			require.Contains(t, help, op.Effect)
			continue
		}
		found++
		status, help, said := w.run("", "dead", op.Name, "--help")
		require.Zero(t, status, said)
		require.Contains(t, help, op.Effect)
		require.Equal(t, op.Spreads, strings.Contains(help, "--over"), op.Name)
		require.Equal(t, op.Moves, strings.Contains(help, "--to "), op.Name)
		require.Equal(t, op.Moves, strings.Contains(help, "--create"), op.Name)
		require.Equal(t, op.Single, strings.Contains(help, "[ID...]"), op.Name)
		status, help, _ = w.run("", "dead", "--help")
		require.Zero(t, status)
		require.Contains(t, help, "redisdelay dead "+op.Name)

		args := []string{"dead", op.Name, "orders", "--json", "--yes"}
		if op.Moves {
			status, _, said = w.run("", args...)
			require.Equal(t, exitRefused, status)
			require.Contains(t, said, `required flag(s) "to" not set`)
			status, _, said = w.run("", append(args, "--to", "")...)
			require.Equal(t, exitRefused, status)
			require.Contains(t, said, "--to is empty")
			args = append(args, "--to", "other")
		}
		status, out, said := w.run("", args...)
		require.Zero(t, status, said)
		require.Contains(t, out, `"action":"`+op.Name+`"`)
		require.Contains(t, out, `"count":0,"unit":"`+op.Unit+`"`)
		status, _, said = w.run("", append(args, "some-id")...)
		require.Equal(t, map[bool]int{true: exitFailed, false: exitRefused}[op.Single], status, said)
	}
	require.Equal(t, 3, found)
}

// Without --group the topic is paused, with one the group, also if it is the default one. An empty
// --group, such as of a variable of a script that is not set, pauses nothing.
func TestPauseOfATopicAndOfItsDefaultGroup(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", redisdelay.DefaultConsumerGroup)
	paused := func() (topic, group bool) {
		stats, err := w.admin.Stats(t.Context(), "orders")
		require.NoError(t, err)
		return stats.Pause != nil, stats.Groups[0].Pause != nil
	}
	for _, c := range []struct {
		args         []string
		status       int
		topic, group bool
	}{
		{[]string{"pause", "orders", "--group", ""}, exitRefused, false, false},
		{[]string{"pause", "orders", "--group", "default"}, 0, false, true},
		{[]string{"resume", "orders"}, 0, false, true},
		{[]string{"pause", "orders"}, 0, true, true},
		{[]string{"resume", "orders", "--group", ""}, exitRefused, true, true},
		{[]string{"resume", "orders", "--group", "default"}, 0, true, false},
		{[]string{"resume", "orders"}, 0, false, false},
	} {
		status, _, said := w.run("", c.args...)
		require.Equal(t, c.status, status, "%v: %s", c.args, said)
		if c.status == exitRefused {
			require.Contains(t, said, "--group is empty")
		}
		topic, group := paused()
		require.Equal(t, c.topic, topic, c.args)
		require.Equal(t, c.group, group, c.args)
	}
}

// A group that is not named is not removed, even if the topic has a default one.
func TestGroupWithoutANameIsNotRemoved(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", redisdelay.DefaultConsumerGroup)
	for _, args := range [][]string{{"groups", "rm", "orders"}, {"groups", "rm", "orders", ""}, {"groups", "rm", "orders", "", "--dry-run"}, {"groups", "rm", "orders", "--idle", "0s"}} {
		status, _, said := w.run("", append(args, "--yes")...)
		require.Equal(t, exitRefused, status, said)
		require.Regexp(t, "name a GROUP|no group is named", said)
	}
	status, _, said := w.run("", "groups", "rm", "orders", "--idle", "1s", "--yes")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "Idle is 1s, want at least 1m0s")
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Len(t, stats.Groups, 1)
	status, _, said = w.run("", "groups", "rm", "orders", "default", "--yes")
	require.Zero(t, status, said)
}

// A message that is named is requeued alone. What is spread becomes due later.
func TestOperationsRunByTheTable(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	stop := w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing", MaxDeliveries: 1})
	for _, uuid := range []string{"a", "b", "c", "d"} {
		w.publish("orders", uuid, "die: "+uuid)
	}
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == 4 })
	stop()
	page, err := w.admin.List(t.Context(), "orders", admin.Query{State: admin.Dead, Group: "billing"})
	require.NoError(t, err)
	dead := func(want int) admin.GroupStats {
		t.Helper()
		stats, err := w.admin.Stats(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, want, stats.Groups[0].Dead)
		return stats.Groups[0]
	}
	for _, op := range []string{"requeue", "purge"} {
		status, out, said := w.run("", "dead", op, "orders", "--dry-run")
		require.Zero(t, status, said)
		require.Contains(t, out, "This would "+op+" 4 dead letters")
	}
	dead(4)
	status, _, said := w.run("", "dead", "requeue", "orders", page.Messages[0].ID, "--yes")
	require.Zero(t, status, said)
	back := dead(3)
	require.Equal(t, 1, back.Ready+back.Retrying) // nobody schedules the topic any more
	status, _, said = w.run("", "dead", "requeue", "orders", "--limit", "1", "--over", "1h", "--yes")
	require.Zero(t, status, said)
	dead(2)
	status, _, said = w.run("", "dead", "requeue", "orders", "--over=-1s", "--yes")
	require.Equal(t, exitRefused, status, said)
	dead(2)
	status, out, said := w.run("", "dead", "move", "orders", "--to", "retired", "--create", "--limit", "1", "--over", "2h", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, `Done: move 1 dead letter of group "billing" of topic "orders" to topic "retired".`)
	dead(1)
	status, _, said = w.run("", "dead", "purge", "orders", page.Messages[3].ID, "--yes")
	require.Zero(t, status, said)
	dead(0)
	acts, _, err := w.admin.Acts(t.Context(), "", 0)
	require.NoError(t, err)
	require.Equal(t, "purge", acts[0].Action)
	require.WithinDuration(t, time.Now(), acts[0].At, time.Minute)
}

// A flag that chooses dead letters and is empty, such as by a variable that is not set, does not
// choose all.
func TestAnEmptyChoiceOfDeadLettersIsRefused(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.bury("orders", "billing", 3)
	w.publish("other", "x", "x")
	for _, command := range []string{"requeue", "purge", "move --to other", "export", "ls"} {
		for _, name := range []string{"reason", "since", "until"} {
			args := append(append([]string{"dead"}, strings.Fields(command)...), "orders", "--"+name+"=")
			if command != "export" && command != "ls" {
				args = append(args, "--yes")
			}
			status, _, said := w.run("", args...)
			require.Equal(t, exitRefused, status, args)
			require.Contains(t, said, "--"+name+" is empty", args)
		}
	}
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Equal(t, 3, stats.Groups[0].Dead)
}
