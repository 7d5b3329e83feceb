package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// limitIn returns the limit of group billing.
func (w *world) limitIn(topic string) admin.GroupLimit {
	w.t.Helper()
	stats, err := w.admin.Stats(w.t.Context(), topic)
	require.NoError(w.t, err)
	for _, g := range stats.Groups {
		if g.Group == "billing" {
			return g.Limit
		}
	}
	require.FailNow(w.t, "there is no group")
	return admin.GroupLimit{}
}

func (w *world) limits(args string) (status int, out, said string) {
	w.t.Helper()
	return w.run("", append([]string{"groups", "limit"}, strings.Fields(args)...)...)
}

func TestTheLimitOfAGroupIsSetLiftedAndReset(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing", Limit: 3})
	asked := admin.Limit{Rate: 3, Burst: 1}
	for _, step := range []struct {
		args, says string
		want       admin.GroupLimit
	}{
		{"", "is limited to 3/s, burst 1, as its subscribers ask for.\n", admin.GroupLimit{Limit: asked, Asked: asked}},
		{"--rate 50/s --burst 10 --at-once 5", "is limited to 50/s, burst 10, 5 at once, by an operator; subscribers ask for 3/s, burst 1. Before, it was: 3/s, burst 1.\n",
			admin.GroupLimit{Limit: admin.Limit{Rate: 50, Burst: 10, AtOnce: 5}, Set: true, Asked: asked}},
		{"", "is limited to 50/s, burst 10, 5 at once, by an operator; subscribers ask for 3/s, burst 1.\n",
			admin.GroupLimit{Limit: admin.Limit{Rate: 50, Burst: 10, AtOnce: 5}, Set: true, Asked: asked}},
		{"--rate 100/5s", "is limited to 20/s, burst 2, by an operator; subscribers ask for 3/s, burst 1. Before, it was: 50/s, burst 10, 5 at once, set by an operator.\n",
			admin.GroupLimit{Limit: admin.Limit{Rate: 20, Burst: 2}, Set: true, Asked: asked}},
		{"--at-once 7 --why quiet", "is limited to 7 at once, by an operator;", admin.GroupLimit{Limit: admin.Limit{AtOnce: 7}, Set: true, Asked: asked}},
		{"--lift", "has no limit, because an operator has lifted it; subscribers ask for 3/s, burst 1. Before,", admin.GroupLimit{Set: true, Asked: asked}},
		{"--reset", "is limited to 3/s, burst 1, as its subscribers ask for. Before, it was: lifted;", admin.GroupLimit{Limit: asked, Asked: asked}},
		{"--reset", "is limited to 3/s, burst 1, as its subscribers ask for.\n", admin.GroupLimit{Limit: asked, Asked: asked}},
	} {
		status, out, said := w.limits("orders billing " + step.args)
		require.Zero(t, status, said)
		require.Contains(t, out, `Group "billing" of topic "orders" `+step.says, step.args)
		require.Equal(t, step.want, w.limitIn("orders"), step.args)
	}
	_, out, said := w.limits("orders billing --rate 1/d --json")
	require.Empty(t, said)
	var got limitedGroup
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, "1/d, burst 1, set by an operator", got.Limit.String())
	require.Equal(t, asked, got.Before.Limit)
}

// A wrong limit is refused by the name of its flag, with what would be right, and changes nothing.
func TestWrongLimitsAreRefusedByTheirFlags(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	for args, fault := range map[string]string{
		"--rate 0/s":                  "--rate is \"0/s\", and a rate is above 0; want a number of messages in a time, such as 50/s, 10/m, 1/h, 1/d or 100/5s; --lift is for no limit",
		"--rate=-5/s":                 "--rate is \"-5/s\", and a rate is above 0",
		"--rate NaN/s":                "--rate is \"NaN/s\", and \"NaN\" is not a number",
		"--rate 50":                   "--rate is \"50\", which has no time",
		"--rate 50/week":              "--rate is \"50/week\", and \"week\" is no time",
		"--rate 200000/s":             "Rate is 200000 messages a second, must be from one a day",
		"--rate 1/72h":                "must be from one a day",
		"--rate 50/s --burst 0":       "--burst is \"0\"; want a whole number from 1, or leave it out for what the rate brings in 100ms",
		"--rate 50/s --burst=-1":      "--burst is \"-1\"",
		"--rate 50/s --burst 0.5":     "--burst is \"0.5\"",
		"--rate 50/s --burst 2000000": "Burst is 2000000, must be from 1 to 1000000",
		"--burst 10":                  "a burst belongs to a rate, such as --rate 50/s --burst 10",
		"--burst 10 --at-once 5":      "a burst belongs to a rate",
		"--at-once 0":                 "--at-once is \"0\"; want a whole number from 1, or leave it out, or use --lift, for no limit",
		"--at-once=-1":                "--at-once is \"-1\"",
		"--at-once many":              "--at-once is \"many\"",
		"--why deal":                  "nothing is to be changed; add --rate, --at-once, --lift or --reset",
		"--lift --reset":              "--lift and --reset say different things",
		"--rate 5/s --lift":           "--rate and --lift say different things",
		"--lift --burst 3":            "a burst belongs to a rate",
		"--lift=false":                "--lift and --reset take no value",
		"--rate 5/s --reset=false":    "--lift and --reset take no value",
	} {
		status, _, said := w.limits("orders billing " + args)
		require.Equal(t, exitRefused, status, "%s: %s", args, said)
		require.Contains(t, said, fault, args)
	}
	require.Zero(t, w.limitIn("orders"))
	for _, act := range w.acts() {
		require.NotEmpty(t, act.Error, "a refusal by the flags is not in the log")
	}
	status, _, said := w.run("", "groups", "limit", "orders", "", "--lift")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "GROUP is empty")
	for _, args := range []string{"orders nobody", "orders nobody --lift", "orders nobody --reset"} {
		status, _, said = w.limits(args)
		require.Equal(t, exitFailed, status)
		require.Contains(t, said, `group "nobody" of topic "orders"`)
	}
}

func TestALookAtALimitChangesNothing(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	_, out, said := w.limits("orders billing")
	require.Equal(t, "Group \"billing\" of topic \"orders\" has no limit.\n", out)
	require.Empty(t, said)
	w.limits("orders billing --rate 5/s")
	before := dumps(t, w)
	_, _, said = w.limits("orders billing")
	require.Equal(t, "By whom and why: redisdelay audit --topic=orders\n", said)
	w.limits("orders billing --json")
	require.Equal(t, before, dumps(t, w))
}

func TestPartitionsShareTheLimitThatTheToolSets(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	parts, err := partition.Topics("mails", 2)
	require.NoError(t, err)
	for _, name := range parts {
		w.group(name, "billing")
	}
	status, _, said := w.limits("mails billing --at-once 1")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "1 at once is less than one for each of 2 partitions: make it 2 or more")
	status, out, said := w.limits("mails billing --rate 50/s --at-once 4")
	require.Zero(t, status, said)
	require.Contains(t, out, `Group "billing" of topic "mails" (2 partitions) is limited to 50/s, burst 4, 4 at once`)
	require.Equal(t, admin.Limit{Rate: 25, Burst: 2, AtOnce: 2}, w.limitIn(parts[1]).Limit)
}

// The tables say which limit a group has, and that messages wait because of it. That is no problem.
func TestTheTablesSayLimited(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)})
	w := newWorld(t, server.Client(), server.Addr())
	w.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing", MaxInFlight: 5, AtOnce: 1, LeaseDuration: time.Hour})
	w.publish("orders", "held", "hold")
	w.publish("orders", "next", "x")
	w.await("orders", "billing", func(g admin.GroupStats) bool { return !g.LimitedSince.IsZero() })
	server.Advance(2 * time.Minute)
	_, out, _ := w.run("", "groups", "ls", "orders")
	require.Regexp(t, `LIMIT +PAUSED\n.* limited: 1 at once +-`, out)
	_, out, _ = w.run("", "topics")
	require.Regexp(t, `orders .* billing limited to 1 at once\n`, out)
	_, out, _ = w.run("", "top", "--once", "--interval", "100ms", "--json")
	require.Contains(t, out, `"limited":"billing limited to 1 at once"`)
	require.NotContains(t, out, `"problem"`)
	_, out, _ = w.limits("orders billing")
	require.Contains(t, out, "Messages wait because of it, 1 of them, since ")
	_, out, _ = w.run("", "doctor", "orders")
	require.Contains(t, out, `notice    Group "billing" of topic "orders" waits for its limit, 1 at once: a message has been ready`)
	require.Contains(t, out, "redisdelay groups limit orders billing")
	require.NotContains(t, out, "keep up")
	_, out, _ = w.run("", "__complete", "groups", "limit", "orders", "b")
	require.Contains(t, out, "billing\n")
}
