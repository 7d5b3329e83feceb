package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// Problems of many topics are one line a kind, and --kind and --topic show each.
func TestDoctorFoldsAndUnfolds(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	for i := range 5 {
		w.group(fmt.Sprint("a", i), "g")
		w.publish(fmt.Sprint("a", i), "x", "x", redisdelay.DelayKey, "1h")
		require.NoError(t, w.client.HDel(t.Context(), fmt.Sprintf("redisdelay:{a%d}:scheduler", i), "holder", "standby").Err())
	}
	w.bury("z", "billing", 2)
	status, out, _ := w.run("", "doctor")
	require.Equal(t, exitFailed, status)
	require.True(t, strings.HasPrefix(out, `warning   Group "billing" of topic "z" got 2 dead letters`), out)
	require.Regexp(t, `critical  Nobody does the due-time work of \d topics\. The worst: Nobody does the due-time work of topic "a0"`, out)
	require.Regexp(t, `All \d: redisdelay doctor --kind=unscheduled`, out)
	require.NotContains(t, out, `"a1"`)
	_, out, _ = w.run("", "doctor", "--kind", "unscheduled")
	for i := range 5 {
		require.Contains(t, out, fmt.Sprintf(`topic "a%d"`, i))
	}
	require.NotContains(t, out, "dead letters")
	_, out, _ = w.run("", "doctor", "--topic", "a3", "--json")
	require.Contains(t, out, `"harm":"idle","topic":"a3"`)
	require.Contains(t, out, `"count":1,"topics":1`)
	require.NotContains(t, out, `"a1"`)
	status, _, said := w.run("", "doctor", "--kind", "nonsense")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "want one of replica, unscheduled")
}

func TestWhatIsIgnoredIsShownCountedAndInTheAuditLog(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // without an append-only file
	w := newWorld(t, server.Client(t), server.Addr())
	w.publish("orders", "x", "x", redisdelay.DelayKey, "1h")
	status, out, _ := w.run("", "doctor")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "warning   Of Redis, there is no append-only file")
	status, _, said := w.run("", "ignore", "persistence")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, `"why"`)
	status, _, said = w.run("", "ignore", "hung", "orders", "--why", "x")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, `there is no hung problem of topic "orders" now`)
	status, out, _ = w.run("", "ignore", "persistence", "--why", "it is a cache", "--as", "ann@ops")
	require.Zero(t, status)
	require.Contains(t, out, `Problems of kind "persistence" are ignored by "ann@ops" since `)
	status, out, said = w.run("", "doctor")
	require.Zero(t, status)
	require.Contains(t, out, "ignored   Of Redis, there is no append-only file")
	require.Contains(t, out, `because: "it is a cache".`)
	require.Contains(t, out, "redisdelay unignore persistence")
	require.Contains(t, said, "Nothing is wrong with 1 topic, but for 1 problem that somebody ignores.")
	status, out, _ = w.run("", "unignore", "persistence", "--as", "bob@ops")
	require.Zero(t, status)
	require.Contains(t, out, "show again")
	status, _, said = w.run("", "unignore", "persistence")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "not ignored")
	status, _, _ = w.run("", "doctor")
	require.Equal(t, exitFailed, status)
	_, out, _ = w.run("", "audit")
	require.Regexp(t, `ann@ops\s+ignore\b.*persistence: it is a cache`, out)
	require.Regexp(t, `bob@ops\s+unignore\b`, out)
}

// The command that shows the problems of a line one by one finds the same.
func TestDoctorUnfoldsAsItWasCalled(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	for _, name := range []string{"a", "-b", "c"} {
		w.group(name, "g")
		w.publish(name, "x", "x", redisdelay.DelayKey, "1h")
		require.NoError(t, w.client.HDel(t.Context(), "redisdelay:{"+name+"}:scheduler", "holder", "standby").Err())
		for _, id := range []string{"01M7Y3SQGNBVX5P66MY8JV56FH", "01M7Y3SQGNBVX5P66MY8JV56FJ"} {
			require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{"+name+"}:messages", id, "lost").Err())
		}
	}
	unfolding := regexp.MustCompile(`All (\d): redisdelay (doctor .*)`)
	for _, args := range [][]string{{"doctor", "--deep"}, {"doctor", "--deep", "--late", "10s", "a", "c"}, {"doctor", "--deep", "--", "a", "-b"}, {"doctor", "--late=10s"}} {
		_, out, _ := w.run("", args...)
		found := unfolding.FindAllStringSubmatch(out, -1)
		require.NotEmpty(t, found, out)
		for _, line := range found {
			_, each, _ := w.run("", strings.Fields(line[2])...)
			require.Equal(t, line[1], fmt.Sprint(len(regexp.MustCompile(`(?m)^(critical|violation|warning|notice) `).FindAllString(each, -1))), "%s:\n%s", line[0], each)
			require.Equal(t, strings.Contains(strings.Join(args, " "), "--late"), strings.Contains(line[2], "--late=10s"))
		}
	}
	_, out, _ := w.run("", "doctor", "--deep", "c")
	require.Contains(t, out, "redisdelay doctor --deep --kind=lost c\n")
}

// Kinds that only Deep finds are ignored, too. A TOPIC that is empty by mistake is not all topics.
func TestIgnoreReadsWhatItIsAbout(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.publish("orders", "x", "x", redisdelay.DelayKey, "1h")
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{orders}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", "lost").Err())
	for _, command := range []string{"ignore", "unignore"} {
		args := []string{command, "lost", ""}
		if command == "ignore" {
			args = append(args, "--why=x")
		}
		status, _, said := w.run("", args...)
		require.Equal(t, exitRefused, status)
		require.Contains(t, said, "TOPIC is empty; leave it out for all topics")
	}
	status, _, said := w.run("", "ignore", "lost", "--why", "x")
	require.Zero(t, status, said)
	_, out, _ := w.run("", "doctor", "--deep")
	require.Contains(t, out, "redisdelay unignore lost")
	status, _, said = w.run("", "unignore", "lost")
	require.Zero(t, status, said)
	status, _, said = w.run("", "unignore", "unread-group")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "unread-group problems are not ignored")
}

// A warning about the server has no topic.
func TestCheckSaysThatAWarningIsAboutTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.publish("orders", "x", "x", redisdelay.DelayKey, "1h")
	_, out, _ := w.run("", "check")
	require.Regexp(t, `warning +the server +- +- +persistence`, out)
	_, out, _ = w.run("", "check", "--json")
	require.NotContains(t, out, `"topic"`)
}

func TestRepairSpeaksInSentences(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	w := newWorld(t, server.Client(), server.Addr())
	w.publish("orders", "x", "x", redisdelay.DelayKey, "1h")
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{orders}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", "lost").Err())
	_, out, _ := w.run("", "repair", "orders", "--yes")
	require.Contains(t, out, "Had it wait for its due time, for it was in no state.")
	require.NotContains(t, out, "[")
}

// A process that crashed is gone at once, and leaves when it has nothing in hand.
func TestCrashedProcessesAreGoneAndLeave(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	w.group("orders", "billing")
	binary, err := os.Executable()
	require.NoError(t, err)
	worker := withEnv(exec.Command(binary), append(os.Environ(), asWorker+"="+w.addr, asSlowWorker+"="))
	require.NoError(t, worker.Start())
	t.Cleanup(func() { _ = worker.Process.Kill() })
	require.Eventually(t, func() bool {
		_, out, _ := w.run("", "workers", "orders")
		return strings.Contains(out, "connected")
	}, patience, 10*time.Millisecond)
	w.publish("orders", "poisoned", "poison")
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.InHand == 1 })
	_, out, _ := w.run("", "msg", "ls", "orders", "--state", "in-hand")
	require.Regexp(t, fmt.Sprintf(` on .+, process %d\b`, worker.Process.Pid), out)
	require.NoError(t, worker.Process.Kill())
	_ = worker.Wait()
	var seen string
	require.Eventually(t, func() bool {
		_, out, _ := w.run("", "workers", "orders")
		_, objects, _ := w.run("", "workers", "orders", "--json")
		if found := regexp.MustCompile(`"seen":"([^"]+)"`).FindStringSubmatch(objects); found != nil {
			seen = found[1]
		}
		return strings.Contains(out, "gone since")
	}, patience, 10*time.Millisecond)
	_, out, _ = w.run("", "groups", "ls", "orders", "--json")
	require.Contains(t, out, `"last_seen":"`+seen, "the same everywhere")
	_, err = w.admin.Kill(t.Context(), "orders", admin.GroupMessage{Group: "billing", ID: w.id("orders", "poisoned")}, admin.KillOptions{})
	require.NoError(t, err)
	_, out, said := w.run("", "workers", "orders")
	require.NotContains(t, out, "gone since", "it has left")
	require.Contains(t, said, "Nobody subscribes.")
}
