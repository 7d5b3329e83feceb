package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATopicIsRenamedByTheTool(t *testing.T) {
	t.Parallel()
	w := wares(t)
	before := w.waiting("orders")
	move := []string{"topics", "move", "orders", "--to", "shop"}
	status, _, said := w.run("", append(move, "--dry-run")...)
	require.NotZero(t, status)
	require.Contains(t, said, `topic "shop": not found; Create makes it: say --create`)
	status, out, _ := w.run("", append(move, "--create", "--dry-run")...)
	require.Zero(t, status)
	require.Equal(t, "This would move 9 messages of topic \"orders\" to topic \"shop\", and make 1 group in it, which is new: billing.\n", out)
	status, _, said = w.run("", append(move, "--create")...)
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "say --yes")
	status, out, said = w.run("", append(move, "--create", "--yes", "--json")...)
	require.Zero(t, status, said)
	require.JSONEq(t, `{"action":"move","topic":"orders","to":"shop","count":9,"unit":"message","created":["billing"],"new_topic":true,"stay":[],"ready":0,"in_hand":0}`, out)
	require.Equal(t, before, w.waiting("shop"))
	require.Empty(t, w.waiting("orders"))
	acts := w.acts()
	require.Equal(t, "done: 9 messages", acts[1].Detail)
	require.Equal(t, `begins with 9 messages, to "shop"`, acts[0].Detail)
	status, out, _ = w.run("", append(move, "--yes")...)
	require.Zero(t, status)
	require.Contains(t, out, "Done: move 0 messages")
}

func TestMessagesOfOneKindMoveByTheTool(t *testing.T) {
	t.Parallel()
	w := wares(t)
	w.group("gifts", "packing")
	w.publish("gifts", "theirs", "x", "delay", "1h")
	status, _, said := w.run("", "msg", "move", "orders", "--to", "gifts", "--yes")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "or say --all")
	status, _, said = w.run("", "msg", "move", "orders", "--to", "gifts", "--state", "ready", "--yes")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "--state is \"ready\"")
	for _, name := range []string{"since", "until", "state", "reason"} {
		status, _, said = w.run("", "msg", "move", "orders", "--to", "gifts", "--"+name+"=", "--yes")
		require.Equal(t, exitRefused, status, name)
		require.Contains(t, said, "--"+name+" is empty")
	}
	require.Len(t, w.waiting("orders"), 9)
	status, out, _ := w.run("", "msg", "move", "orders", "--to", "gifts", "--metadata", "kind=gift", "--state", "waiting", "--yes")
	require.Zero(t, status)
	require.Equal(t, "Done: move 6 messages of topic \"orders\" to topic \"gifts\".\n", out)
	require.Len(t, w.waiting("orders"), 3)
	require.Equal(t, `begins with 6 messages, to "gifts", waiting, metadata kind=gift`, w.acts()[0].Detail)
	status, _, said = w.run("", "msg", "move", "gifts", "--to", "orders", "--all", "--yes", "--json")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, `lacks group "packing"`, "which would not get what waits")
	status, out, _ = w.run("", "msg", "move", "gifts", "--to", "orders", "--create", "--all", "--yes", "--json")
	require.Zero(t, status)
	require.True(t, strings.Contains(out, `"count":6`) || strings.Contains(out, `"count":7`), out)
}

func TestTheToolSaysWhatDoesNotMove(t *testing.T) {
	t.Parallel()
	w := wares(t)
	w.group("shop", "billing")
	for range 2 {
		w.publish("shop", "uuid", "x", "delay", "1h", "delay_id", "order 1")
	}
	status, out, said := w.run("", "topics", "move", "orders", "--to", "shop", "--yes")
	require.Zero(t, status)
	require.Contains(t, out, "Done: move 8 messages")
	require.Contains(t, said, `1 message stays, because other messages have their delay IDs in topic "shop": "order 1".`)
}
