package main

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// changing are the commands that are made to change something. All others only look.
var changing = []string{
	"dead requeue", "dead purge", "dead move", "dead import", "msg import", "msg cancel", "msg reschedule", "msg now", "msg move", "msg kill", "pause", "resume", "ignore", "unignore",
	"publish", "repair", "relay", "schedule", "schedules pause", "schedules resume", "schedules run", "schedules rm", "partitions set",
	"groups add", "groups limit", "groups history", "groups rm", "topics rm", "topics move", "workers release", "periodic",
}

// dumps returns the value of each key of the server. Keys with an expiry are left out: those are
// memories of earlier calls, as docs/redis-keys.md says.
func dumps(t *testing.T, w *world) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, key := range w.client.Keys(t.Context(), "*").Val() {
		if ttl, err := w.client.PTTL(t.Context(), key).Result(); err == nil && ttl > 0 {
			continue
		}
		dump, err := w.client.Dump(t.Context(), key).Result()
		if err != nil { // the embedded server cannot dump all types
			dump = err.Error()
		}
		found[key] = dump
	}
	return found
}

// No command that only looks changes a key, nor does the dry run of one that changes something.
func TestLooksChangeNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes")
	w := newWorld(t, server.Client(t), server.Addr())
	w.bury("orders", "billing", 3)
	w.group("orders", "audit")
	w.publish("orders", "ready", "x", "kind", "gift")
	w.publish("orders", "waits", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "name")
	w.publish("orders", "soon", "x", redisdelay.DelayKey, "1s")
	for range 5 {
		w.publish("oders", "without a group", "x")
	}
	parts, err := partition.Topics("mails", 2)
	require.NoError(t, err)
	for _, name := range parts {
		w.publish(name, "x", "y")
	}
	_, err = w.admin.Pause(t.Context(), "mails", admin.PauseOptions{By: "ann", Why: "deploy"})
	require.NoError(t, err)
	w.recur(w.fromFile("testdata/schedules.yaml")...)
	require.NoError(t, w.admin.Record(t.Context(), admin.Act{By: "ann", Action: "pause"}))
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{orders}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", "lost").Err())
	id, exported := w.id("orders", "0"), ""
	_, exported, _ = w.run("", "dead", "export", "orders", "--group", "billing")

	w.group("held", "audit")
	w.publish("held", "in hand", "x")
	client := servers.MustClient(w.client)
	claim := queue.NewTopic(client, "redisdelay", "held").Group("audit").ClaimCall(queue.Claim{Subscription: "S", Number: 1, Limit: 1, Lease: time.Hour, Bytes: 1000})
	require.NoError(t, queue.Do(t.Context(), client, claim))

	// The arguments of each command. All have to succeed.
	commands := map[string][]string{
		"doctor": {"", "orders oders --deep"}, "workers": {"", "orders"}, "top": {"--once --interval 100ms"}, "topics": {"", "orders"},
		"groups ls": {"", "orders"}, "groups idle": {"--for 1ms"}, "upcoming": {"orders --group billing"},
		"dead reasons": {"orders --group billing"}, "dead ls": {"orders --group billing --reason partner"}, "dead show": {"orders " + id},
		"dead export": {"orders --group billing"},
		"msg ls":      {"orders", "orders --state ready --group audit", "orders --state in-hand --group audit", "orders --state retrying --group audit"},
		"msg get":     {"orders name", "orders ready", "orders " + id},
		"find":        {"ready", "name --by delay-id --topic orders", id, "--metadata kind=gift"},
		"tail":        {"orders --for 1500ms", "oders --for 300ms", "orders --for 300ms --json"},
		"check":       {"", "orders"}, "audit": {"", "--by ann"}, "history": {"orders", "orders --since 1h"}, "schedules ls": {"", "reports"}, "schedules show": {"reports clean-up"},
		"partitions show": {"mails"}, "memory": {"", "orders"}, "metrics": {"--listen 127.0.0.1:0"}, "ui": {"--listen 127.0.0.1:0 --contents --write"}, "version": {""},
		"completion bash": {""}, "completion zsh": {""}, "completion fish": {""}, "completion powershell": {""},

		"dead requeue": {"orders --group billing"}, "dead purge": {"orders --group billing", "orders --from -", "orders " + id + " --group billing"},
		"dead move": {"orders --group billing --to oders"}, "dead import": {"orders --every-group"},
		"msg cancel": {"orders name", "orders --all"}, "msg reschedule": {"orders name --in 1h", "orders --all --by 2h"}, "msg now": {"orders name", "orders --all --over 1h"},
		"msg import": {"orders testdata/waits.ndjson"}, "msg kill": {"orders name", "orders ready --group audit"}, "repair": {"orders"},
		"schedules run": {"reports clean-up"}, "schedules rm": {"reports clean-up"},
		"pause": {"orders", "mails"}, "groups rm": {"orders audit", "orders --idle 1m"}, "topics rm": {"orders"},
		"workers release": {"held S"}, "topics move": {"orders --to x --create"}, "msg move": {"orders --to x --create --all"},
	}
	// __complete is a command of cobra, by which a shell completes names.
	completions := []string{"__complete topics ", "__complete dead ls orders --group ", "__complete schedules show reports "}
	before := dumps(t, w)
	require.Greater(t, len(before), 20)
	unchanged := func(command string) {
		t.Helper()
		require.Equal(t, before, dumps(t, w), "%s has changed something", command)
	}
	a := newApp(system{})
	a.root.InitDefaultCompletionCmd()
	tried := 0
	each(a.root, func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "redisdelay ")
		dry := slices.Contains(changing, name)
		if dry && c.Flags().Lookup("dry-run") == nil {
			return
		}
		all, known := commands[name]
		require.True(t, known, "%s is new: it changes something, or it needs arguments here", name)
		for _, args := range all {
			args := append(strings.Fields(name), strings.Fields(args)...)
			if dry {
				args = append(args, "--dry-run")
			}
			command := strings.Join(args, " ")
			switch name {
			case "metrics":
				w.visit(t, "/metrics", args)
			case "ui":
				require.Greater(t, w.visit(t, "/", args), 20, "pages")
			default:
				status, out, said := w.run(exported, args...)
				require.LessOrEqual(t, status, exitFailed, "%s: %s%s", command, out, said)
				if !slices.Contains([]string{"doctor", "check", "repair"}, name) {
					require.Zero(t, status, "%s: %s%s", command, out, said)
				}
			}
			unchanged(command)
			tried++
		}
	})
	require.Greater(t, tried, 45)
	for _, args := range completions {
		status, _, said := w.run("", strings.Split(args, " ")...)
		require.Zero(t, status, said)
		unchanged(args)
	}
}

// visit runs a command that serves pages, and gets a page and all that it links to. It returns how
// many pages there were.
func (w *world) visit(t *testing.T, path string, args []string) (pages int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	at := make(chan string, 1)
	address := regexp.MustCompile(`(?:http://|address=)([0-9.:]+)`)
	done := make(chan int, 1)
	listening := &teller{to: func(text string) {
		if found := address.FindStringSubmatch(text); found != nil {
			select {
			case at <- found[1]:
			default:
			}
		}
	}}
	go func() {
		done <- run(ctx, args, system{environment: w.environment(), stdin: strings.NewReader(""), stdout: io.Discard, stderr: listening})
	}()
	base := "http://" + <-at
	left, seen := []string{path}, map[string]bool{path: true}
	links := regexp.MustCompile(`(?:href|src)="([^"#]+)"`)
	for len(left) > 0 && pages < 300 {
		page := left[0]
		left = left[1:]
		answer, err := http.Get(base + page)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		_ = answer.Body.Close()
		require.Less(t, answer.StatusCode, 500, "%s: %s", page, text)
		pages++
		for _, link := range links.FindAllStringSubmatch(string(text), -1) {
			from, err := url.Parse(base + page)
			require.NoError(t, err)
			to, err := from.Parse(strings.ReplaceAll(link[1], "&amp;", "&"))
			if err != nil || !strings.HasPrefix(to.String(), base) || strings.Contains(to.Path, "/assets/") {
				continue
			}
			if next := to.RequestURI(); !seen[next] {
				seen[next] = true
				left = append(left, next)
			}
		}
	}
	cancel()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "it does not end")
	}
	return pages
}

// teller passes on what is written.
type teller struct{ to func(string) }

func (w *teller) Write(p []byte) (int, error) {
	w.to(string(p))
	return len(p), nil
}
