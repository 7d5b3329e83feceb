package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// shop fills a world with topics whose messages are in each state. stop ends the subscription.
func shop(t *testing.T, start time.Time) (w *world, stop func()) {
	t.Helper()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: start})
	w = newWorld(t, server.Client(), server.Addr())
	stop = w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing", MaxInFlight: 10, LeaseDuration: time.Hour})
	w.group("orders", "audit")
	for i, reason := range []string{"partner 17 is down", "partner 4 is down", "no such customer: 8b1f"} {
		w.publish("orders", fmt.Sprint("dead-", i+1), "die: "+reason, "kind", "gift")
	}
	w.publish("orders", "held", "hold")
	w.publish("orders", "retried", "retry: 30s")
	w.publish("orders", "waiting", `{"order":123,"items":["a","b"]}`, "kind", "gift", redisdelay.DelayIDKey, "order 123", redisdelay.DelayKey, "15m")
	w.publish("orders", "later", "\x00\x01\xff", redisdelay.DelayKey, "16m30s")
	w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == 3 && g.Retrying == 1 && g.InHand == 1 })
	server.Advance(10 * time.Second)

	w.group("mails", redisdelay.DefaultConsumerGroup)
	w.publish("mails", "mail", "hello")
	_, err := w.admin.Pause(t.Context(), "mails", admin.PauseOptions{By: "ann@ops", Why: "the partner is down", For: 2 * time.Hour})
	require.NoError(t, err)
	w.publish("oders", "typo", "lost")
	server.Advance(5 * time.Minute)
	return w, stop
}

// goldens are the commands whose output is in testdata/golden, in this order. A command that takes
// something away is run with --dry-run first, and then with --yes.
var goldens = []struct {
	name, args, stdin string
}{
	{"doctor", "doctor", ""},
	{"doctor-kind", "doctor --kind unread-group", ""},
	{"ignore", "ignore persistence --why cache --as ann@ops", ""},
	{"doctor-ignored", "doctor --kind persistence", ""},
	{"unignore", "unignore persistence --as ann@ops", ""},
	{"memory", "memory", ""},
	{"msg-ls-in-hand", "msg ls orders --state in-hand --group billing", ""},
	{"top", "top --once --interval 100ms", ""},
	{"topics", "topics", ""},
	{"groups-ls", "groups ls", ""},
	{"groups-idle", "groups idle", ""},
	{"workers", "workers", ""},
	{"upcoming", "upcoming orders --group billing --width 90s --buckets 10", ""},
	{"dead-reasons", "dead reasons orders --group billing", ""},
	{"dead-ls", "dead ls orders --group billing --reason down", ""},
	{"dead-show", "dead show orders dead-1", ""},
	{"msg-ls", "msg ls orders", ""},
	{"msg-get", "msg get orders waiting", ""},
	{"msg-get-hex", "msg get orders waiting --payload hex --cut 20", ""},
	{"msg-get-hidden", "msg get orders waiting --no-payload", ""},
	{"find", `find 123 --topic orders --topic mails`, ""},
	{"find-everywhere", "find --metadata kind=gift --limit 2 --no-payload", ""},
	{"find-id", "find 01M7Y3SQGNBVX5P66MY8JV56FH --by id", ""},
	{"dead-export", "dead export orders --group billing", ""},
	{"dead-requeue", "dead requeue orders --group billing --metadata kind=gift --limit 1 --over 10m", ""},
	{"dead-move", "dead move orders --group billing --to mails --reason down --limit 1", ""},
	{"dead-purge", "dead purge orders --group billing", ""},
	{"dead-import", "dead import mails --every-group", `{"id":"01M7Y3SQGNBVX5P66MY8JV56FH","topic":"orders","group":"billing","uuid":"again","payload":"x","died_at":"2026-03-04T12:00:00Z","deliveries":1,"reason":"r"}`},
	{"msg-reschedule", "msg reschedule orders later --in 2h", ""},
	{"msg-cancel", "msg cancel orders waiting", ""},
	{"msg-now", "msg now orders later", ""},
	{"msg-import", "msg import mails testdata/waits.ndjson", ""},
	{"workers-release", "workers release orders HOST --group billing", ""},
	{"msg-kill", "msg kill orders held --group billing", ""},
	{"pause", "pause orders --group billing --as ann@ops --why deploy --for 1h", ""},
	{"resume", "resume orders --group billing", ""},
	{"publish", "publish orders --in 1m --metadata kind=gift --uuid new --delay-id again", "text"},
	{"tail", "tail orders --limit 1", ""},
	{"check", "check", ""},
	{"repair", "repair orders", ""},
	{"groups-rm", "groups rm orders audit", ""},
	{"groups-add", "groups add orders invoices", ""},
	{"groups-limit", "groups limit orders billing --rate 50/s --burst 10 --at-once 5 --as ann@ops --why deal", ""},
	{"groups-history", "groups history orders billing --keep 24h --as ann@ops --why lost", ""},
	{"history", "history orders --since 1h", ""},
	{"topics-move", "topics move orders --to shop --create", ""},
	{"msg-move", "msg move shop --to orders --state waiting --metadata kind=gift", ""},
	{"topics-rm", "topics rm oders", ""},
	{"schedules-ls", "schedules ls", ""},
	{"schedules-show", "schedules show reports daily-report", ""},
	{"schedules-pause", "schedules pause reports clean-up --as ann@ops --why stock-taking --for 2h", ""},
	{"schedules-run", "schedules run reports clean-up --wait 100ms", ""},
	{"schedules-show-paused", "schedules show reports clean-up", ""},
	{"schedules-resume", "schedules resume reports clean-up", ""},
	{"schedules-rm", "schedules rm reports daily-report", ""},
	{"periodic", "periodic --file testdata/schedules.yaml --check", ""},
	{"audit", "audit --by ann@ops", ""},
	{"version", "version", ""},
}

// steady replaces differences of the server's clock, which is the test's, to that of this machine,
// and statistics, which subscriptions tell in their own time.
func steady(text string) string {
	text = regexp.MustCompile(`the server's clock is \S+ (behind|ahead of) this machine's`).ReplaceAllString(text, "the server's clock is off")
	text = regexp.MustCompile(`"max_lateness":"[^"]*"`).ReplaceAllString(text, `"max_lateness":"1ms"`)
	text = regexp.MustCompile(`"lateness":\[[^\]]*\]`).ReplaceAllString(text, `"lateness":[{"at_most":"1ms","count":1}]`)
	text = regexp.MustCompile(` of 127\.0\.0\.1:\d+`).ReplaceAllString(text, " of 127.0.0.1:6379") // "It looked at"
	text = regexp.MustCompile(`("since":"[^"]*",|since )[-0-9:TZ.]+(, because)`).ReplaceAllString(text, "${1}2026-03-04T12:05:10Z$2")
	text = regexp.MustCompile(`\d+(\.\d)? k?B\b`).ReplaceAllString(text, "9 B")
	text = regexp.MustCompile(`("bytes":)\d+(,"waiting)`).ReplaceAllString(text, "${1}9$2")
	text = regexp.MustCompile(`(_bytes":)\d+`).ReplaceAllString(text, "${1}9")
	text = regexp.MustCompile(`process \d+`).ReplaceAllString(text, "process 1")
	text = regexp.MustCompile(`(WORKER|process 1) {2,}`).ReplaceAllString(text, "$1  ")
	host, _ := os.Hostname()
	text = strings.ReplaceAll(text, host, "host")
	text = regexp.MustCompile(`(HOST|host):\d+`).ReplaceAllString(text, "$1:1")
	text = regexp.MustCompile(`(HOST|host) +(PID|\d+) +`).ReplaceAllString(text, "$1  PID  ")
	text = regexp.MustCompile(`(rules\\":\\")\w+`).ReplaceAllString(text, "${1}0") // of a time zone, on this machine
	text = regexp.MustCompile(`(:mailbox:\w+\|)\d+`).ReplaceAllString(text, "${1}1")
	text = regexp.MustCompile(`"pid":\d+`).ReplaceAllString(text, `"pid":1`)
	return regexp.MustCompile(`"(delivered|acked|nacked|retried)":\d+`).ReplaceAllString(text, `"$1":1`)
}

// Each command prints what is in testdata/golden, as text and as JSON.
func TestGolden(t *testing.T) {
	t.Parallel()
	w, stop := shop(t, time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC))
	taking := map[string]bool{}
	commands, picture := map[string]bool{}, ""
	each(newApp(system{}).root, func(c *cobra.Command) {
		name := strings.ReplaceAll(strings.TrimPrefix(c.CommandPath(), "redisdelay "), " ", "-")
		taking[name] = c.Flags().Lookup("yes") != nil
		commands[name] = true
	})
	for _, g := range goldens {
		var s scrubbed
		delete(commands, g.name)
		host, _ := os.Hostname()
		g.args = strings.Replace(g.args, " HOST ", " "+host+" ", 1)
		runs := []string{g.args, g.args + " --json"}
		if taking[g.name] {
			runs = []string{g.args + " --dry-run", g.args + " --yes --json"}
		}
		if g.name == "dead-export" {
			runs = []string{g.args}
		}
		var text strings.Builder
		for _, command := range runs {
			if g.name == "schedules-ls" {
				w.recur(w.fromFile("testdata/schedules.yaml")...)
				w.group("reports", "audit")
				for key, counted := range map[string][]any{"stats": {"refused_occurrences", 3, "returned", 1}, "stats:audit": {"skipped", 2}} {
					require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{reports}:"+key, counted...).Err())
				}
			}
			status, out, said := 0, "", ""
			if g.name == "tail" {
				status, out, said = w.tail(func() { w.publish("orders", "tailed", "news", "kind", "gift") }, strings.Fields(command)[1:]...)
			} else {
				status, out, said = w.run(g.stdin, strings.Fields(command)...)
			}
			fmt.Fprintf(&text, "$ redisdelay %s\n%s", command, s.scrub(out))
			for _, line := range strings.SplitAfter(said, "\n") {
				if line != "" {
					fmt.Fprintf(&text, "stderr: %s", s.scrub(line))
				}
			}
			fmt.Fprintf(&text, "exit code: %d\n\n", status)
		}
		if g.name == "dead-requeue" { // it comes, and dies again
			w.await("orders", "billing", func(g admin.GroupStats) bool { return g.Dead == 3 })
		}
		if g.name == "msg-now" { // it comes
			require.Eventually(t, func() bool {
				stats, err := w.admin.Stats(t.Context(), "orders")
				var billing admin.GroupStats
				for _, g := range stats.Groups {
					if g.Group == "billing" {
						billing = g
					}
				}
				return err == nil && stats.Waiting == 0 && billing.Ready == 0 && billing.InHand == 1 // it is acked there
			}, patience, time.Millisecond)
		}
		if g.name == "workers-release" { // when the subscription goes on is a matter of time
			stop()
		}
		requireGolden(t, g.name, steady(text.String()))
		if g.name == "doctor" || g.name == "top" {
			first, _, _ := strings.Cut(steady(text.String()), "exit code: ")
			first = regexp.MustCompile(`(?m)^warning   Of Redis, .*\n`).ReplaceAllString(first, "") // the embedded server is not set up
			picture += strings.Replace(first, " --once --interval 100ms", "", 1) + "\n"
		}
	}
	requireSection(t, "../../README.md", "<!-- look:begin -->\n", "<!-- look:end -->", "```text\n"+strings.TrimSuffix(picture, "\n")+"```\n")
	for _, left := range []string{"relay", "schedule", "ui", "metrics", "partitions-show", "partitions-set", "completion-bash", "completion-zsh", "completion-fish", "completion-powershell"} {
		delete(commands, left) // they have tests of their own
	}
	require.Empty(t, commands, "commands without a golden file")
	for args, want := range map[string]string{"topics or": "orders\n:4\n", "schedules show reports c": "clean-up\n:4\n", "dead ls orders --group b": "billing\n:4\n", "dead move orders --to m": "mails\n:4\n", "dead re": "reasons\t"} {
		_, out, _ := w.run("", append([]string{"__complete"}, strings.Fields(args)...)...)
		require.True(t, strings.HasPrefix(out, want), "%s: %s", args, out)
	}
}

func requireGolden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name+".txt")
	if updates {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "%s; UPDATE=1 writes it anew", file)
}
