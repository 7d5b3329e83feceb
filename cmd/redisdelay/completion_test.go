package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func TestTheShellCompletesCommands(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := says(nil, "completion", "bash")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "__start_redisdelay")
}

// A reason is completed as "dead reasons" shows it, and chooses the letters that have it.
func TestTheShellCompletesReasons(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	parts, err := partition.Topics("split", 2)
	require.NoError(t, err)
	for _, topic := range []string{"orders", parts[1]} {
		w.subscribe(topic, redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
		for i, reason := range []string{"answered 500", "no stock of article 17", "no stock of article 18"} {
			w.publish(topic, fmt.Sprint(i), "die: "+reason)
		}
		w.await(topic, "billing", func(g admin.GroupStats) bool { return g.Dead == 3 })
	}
	for _, topic := range []string{"orders", "split"} {
		for _, args := range []string{"requeue %s", "ls %s --group billing", "purge %s", "export %s", "move %s --to other"} {
			line := append([]string{"__complete", "dead"}, strings.Fields(fmt.Sprintf(args, topic))...)
			_, out, said := w.run("", append(line, "--reason", "")...)
			require.Equal(t, "no stock of article #\nanswered 500\n:4\n", out, "%s: %s", args, said)
		}
		_, out, _ := w.run("", "__complete", "dead", "requeue", topic, "--reason", "ans")
		require.Equal(t, "answered 500\n:4\n", out)
		status, _, said := w.run("", "dead", "requeue", topic, "--reason", "no stock of article #", "--dry-run")
		require.Zero(t, status, said)
	}
}
