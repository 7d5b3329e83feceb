package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// evil has what a terminal obeys: escape sequences, also by C1 controls, bells, line breaks,
// deletions, reversed text, and what is no UTF-8.
const evil = "\x1b[2J\x1b]0;pwned\x07\r\n\u009b31m\u202e\x7f\x08\xff"

// No command writes control characters that names and messages have in them.
func TestNothingFromRedisControlsTheTerminal(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	topic, group := "orders"+evil, "billing"+evil
	utf8Evil := strings.ToValidUTF8(evil, "")
	w.subscribe(topic, redisdelay.SubscriberConfig{ConsumerGroup: group, MaxInFlight: 10, LeaseDuration: time.Hour})
	w.group(topic, "lonely"+evil)
	for _, verb := range []string{"die: ", "hold: ", "retry: "} {
		w.publish(topic, verb+evil, verb+evil, "key"+evil, evil)
	}
	w.publish(topic, "text", utf8Evil, redisdelay.DelayIDKey, "name"+evil, redisdelay.DelayKey, "2h")
	w.publish(topic, "json", `{"a":"`+"\u009b\u202e"+`"}`, redisdelay.DelayKey, "3h")
	w.publish("gone"+evil, "uuid", evil, redisdelay.DelayKey, "1h")
	w.await(topic, group, func(g admin.GroupStats) bool { return g.Dead == 1 && g.Retrying == 1 && g.InHand == 1 })
	server.Advance(10 * time.Minute)
	_, err := w.admin.Pause(t.Context(), topic, admin.PauseOptions{By: evil, Why: evil})
	require.NoError(t, err)
	// A violation that names the topic and the message.
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{"+topic+"}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", evil).Err())

	w.recur(periodic.Schedule{Name: "clock" + evil, Topic: topic, Spec: "@yearly", Message: func(periodic.Occurrence) (*message.Message, error) {
		return message.NewMessage("", []byte(evil)), nil
	}})
	// A definition that no program has written.
	require.NoError(t, w.client.HSet(t.Context(), "redisdelay:{"+topic+"}:schedules", "odd", "1 1 0 0 0 0 0 0 0 - - - "+evil).Err())
	file := filepath.Join(t.TempDir(), "schedules")
	require.NoError(t, os.WriteFile(file, []byte(`{"schedules":[{"name":"\u001b[2J","topic":"\u001b[2J","spec":"\u001b[2J","\u001b[2J":1}]}`), 0o600))

	exported := `{"id":"x","uuid":"y","group":"z","payload":"\u001b[2J"}`
	commands := map[string][][]string{
		"doctor":         {{}, {topic}, {topic, "--deep"}, {"missing" + evil}},
		"top":            {{"--once", "--interval", "100ms"}},
		"topics":         {{}, {topic}, {"missing" + evil}},
		"topics rm":      {{"gone" + evil, "--dry-run"}, {"gone" + evil, "--yes"}},
		"groups ls":      {{}},
		"groups idle":    {{}},
		"groups add":     {{topic, "new" + evil}, {"missing" + evil, evil}},
		"groups limit":   {{topic, group}, {topic, "missing" + evil}, {topic, group, "--rate", evil}, {topic, group, "--rate", "5/s", "--why", evil}, {topic, group, "--at-once", evil}},
		"groups history": {{topic, group}, {topic, "missing" + evil}, {topic, group, "--keep", evil}, {topic, group, "--keep", "1h", "--why", evil}},
		"history":        {{topic}, {topic, "--group", group}, {topic, "--group", "missing" + evil}, {topic, "--since", evil}, {topic, "--delay-id", evil}},
		"groups rm":      {{topic, "lonely" + evil, "--dry-run"}, {topic, "missing" + evil, "--yes"}},
		"workers":        {{}},
		"memory":         {{}, {topic}, {"missing" + evil}},
		"ignore":         {{"persistence", "--why", evil, "--as", evil}, {"persistence", topic, "--why", evil}, {evil, "--why", "x"}, {"persistence"}},
		"unignore":       {{"persistence"}, {evil}},
		"upcoming":       {{topic, "--group", group}, {topic, "--group", "missing" + evil}, {topic, "--from", evil}},
		"dead reasons":   {{topic, "--group", group}},
		"dead ls":        {{topic, "--group", group}, {topic}, {topic, "--group", group, "--since", evil}},
		"dead show":      {{topic, "die: " + evil}, {topic, evil}},
		"dead export":    {{topic, "--group", group}},
		"dead import":    {{topic}, {topic, "--yes"}, {topic, "--yes", "--every-group"}, {topic, "missing" + evil}},
		"dead requeue":   {{topic, "--group", group}, {topic, evil, "--group", group, "--yes"}, {topic, "--group", group, "--dry-run", "--reason", evil}},
		"dead move":      {{topic, "--group", group, "--to", "to" + evil, "--create", "--dry-run"}, {topic, "--group", group, "--to", "missing" + evil}},
		"dead purge":     {{topic, "--group", group, "--dry-run"}},
		"msg ls":         {{topic}, {topic, "--state", "in-hand", "--group", group}, {topic, "--state", "retrying", "--group", group}, {topic, "--state", evil}},
		"msg get":        {{topic, "name" + evil}, {topic, "hold: " + evil}, {topic, "json", "--payload", "json"}, {topic, "retry: " + evil, "--payload", "text", "--cut", "20"}, {topic, "text", "--payload", "hex"}},
		"find":           {{"name" + evil}, {evil, "--topic", topic, "--limit", "1"}, {evil, "--by", evil}, {evil, "--by", "text", "--topic", "missing" + evil}},
		"msg cancel":     {{topic, "json", "--dry-run"}, {topic, evil, "--yes"}, {topic, "--all", "--export", "missing" + evil + "/x", "--yes"}},
		"msg import":     {{topic, "missing" + evil}, {topic, file}},
		"msg reschedule": {{topic, "json", "--in", "1h"}, {topic, "json", "--at", evil}},
		"msg now":        {{topic, "text"}},
		"msg kill":       {{topic, "hold: " + evil, "--group", group, "--reason", evil, "--yes"}, {topic, "json", "--by", evil}},
		"pause":          {{topic, "--group", group, "--as", evil, "--why", evil}},
		"resume":         {{topic}},
		"publish":        {{topic, "--uuid", evil}, {"missing" + evil}, {topic, "--in", evil}, {topic, "--metadata", evil}},
		"tail":           {{"missing" + evil}, {topic, "--limit", "1"}},
		"audit":          {{}, {"--by", evil}, {"--topic", topic, "--limit", "2"}, {"--limit", evil}},
		"check":          {{}},
		"repair":         {{topic, "--dry-run"}, {topic, "--yes"}},
		"version":        {{evil}},
		"relay":          {{evil}, {"--from", evil, "--to", "redisstream", "--map", evil}},
		"metrics":        {{"--listen", evil}},
		"ui":             {{"--listen", evil}},
		"schedule":       {{"missing" + evil}},

		"schedules ls":     {{}, {topic}, {"missing" + evil}},
		"schedules show":   {{topic, "clock" + evil}, {topic, "odd"}, {topic, "missing" + evil}},
		"schedules pause":  {{topic, "clock" + evil}, {topic, evil}},
		"schedules resume": {{topic, "clock" + evil}, {topic, evil}},
		"schedules run":    {{topic, "clock" + evil}, {topic, "clock" + evil, "--yes", "--wait", "10ms"}, {topic, evil}},
		"schedules rm":     {{topic, "clock" + evil, "--dry-run"}, {topic, "odd", "--yes"}, {topic, evil}},
		"workers release":  {{topic, evil}, {topic, evil, "--group", group}, {"missing" + evil, "x"}},
		"partitions show":  {{"missing" + evil}, {topic}},
		"partitions set":   {{"parts" + evil, "3"}, {topic, "3"}, {"parts" + evil, evil}},
		"periodic":         {{"--check", "--file", file}, {"--file", "missing" + evil}},
	}
	said := 0
	check := func(args []string, stdin string) {
		out, errs := "", ""
		if args[0] == "tail" && len(args) > 2 {
			_, out, errs = w.tail(func() { w.publish(topic, evil, evil) }, args[1:]...)
		} else {
			_, out, errs = w.run(stdin, args...)
		}
		require.True(t, out+errs != "" || args[len(args)-1] == "--json", "%q says nothing", args)
		for _, r := range out + errs {
			require.True(t, r == '\n' || strconv.IsPrint(r), "%q prints %q in\n%q", args, r, out+errs)
		}
		said += strings.Count(out+errs, `[2J`)
	}
	each(newApp(system{}).root, func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "redisdelay ")
		if strings.HasPrefix(name, "completion") {
			return
		}
		require.NotEmpty(t, commands[name], "%s is not tried", name)
		for _, args := range commands[name] {
			args = append(strings.Fields(name), args...)
			check(args, exported)
			if c.Flags().Lookup("json") != nil {
				check(append(args, "--json"), exported)
			}
		}
	})
	check([]string{evil}, "")
	check([]string{"topics", "--" + evil}, "")
	require.Greater(t, said, 50, "names were printed")
	status, out, _ := w.run("", "__complete", "topics", "")
	require.Zero(t, status)
	require.NotContains(t, out, "orders", "names that are not plain text are not completed")
}

// A command that is printed to be repeated is that command in a shell, whatever the names are.
func TestPrintedCommandsCanBePasted(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"orders", "", "a b", "it's", `$(reboot)`, "`reboot`", "a;b&c|d>e", `back\slash`, "küche", "-x", "*", "~", "#", "!x", evil, "'" + evil, "a\nb'c\\"} {
		line := commandLine("resume", arg)
		require.Equal(t, clean(line), line)
		require.Equal(t, []string{"resume", arg}, shellWords(t, line), line)
	}
}
