package queue_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func (w *world) named(ids []string) []string {
	named := []string{}
	for _, id := range ids {
		id, _, _ = strings.Cut(id, ":")
		named = append(named, w.name[id])
	}
	return named
}

func (w *world) ready(group string) []string {
	w.t.Helper()
	entries, err := w.Client.LRange(ctx, w.keys.Ready(group), 0, -1).Result()
	require.NoError(w.t, err)
	return w.named(entries)
}

// zset returns the names in a sorted set, in order.
func (w *world) zset(key string) []string {
	w.t.Helper()
	ids, err := w.Client.ZRange(ctx, key, 0, -1).Result()
	require.NoError(w.t, err)
	return w.named(ids)
}

func (w *world) pending() []string           { w.t.Helper(); return w.zset(w.keys.Pending()) }
func (w *world) unack(group string) []string { w.t.Helper(); return w.zset(w.keys.Unack(group)) }
func (w *world) retry(group string) []string { w.t.Helper(); return w.zset(w.keys.Retry(group)) }
func (w *world) dead(group string) []string  { w.t.Helper(); return w.zset(w.keys.Dead(group)) }
func (w *world) waiters(group string) []string {
	w.t.Helper()
	addresses, err := w.Client.ZRange(ctx, w.keys.Waiters(group), 0, -1).Result()
	require.NoError(w.t, err)
	return addresses
}

// score of a message in a sorted set.
func (w *world) score(key, name string) float64 {
	w.t.Helper()
	score, err := w.Client.ZScore(ctx, key, w.id[name]).Result()
	require.NoError(w.t, err, name)
	return score
}

// field of a message in a hash, or "".
func (w *world) field(key, name string) string {
	w.t.Helper()
	value, err := w.Client.HGet(ctx, key, w.id[name]).Result()
	if err != redis.Nil {
		require.NoError(w.t, err)
	}
	return value
}

// stored are the names of the messages that have a body, sorted.
func (w *world) stored() []string {
	w.t.Helper()
	stored, err := w.Client.HVals(ctx, w.keys.Messages()).Result()
	require.NoError(w.t, err)
	slices.Sort(stored)
	return stored
}

// next is when the topic's scheduler is to look; 0: never.
func (w *world) next() int64 { return w.scheduled("next") }

// scheduled is a time in the hash of the scheduler, 0 if there is none.
func (w *world) scheduled(field string) int64 {
	w.t.Helper()
	at, err := w.Client.HGet(ctx, w.keys.Scheduler(), field).Int64()
	if err != redis.Nil {
		require.NoError(w.t, err)
	}
	return at
}

// dump is all that there is under the prefix, by key.
func (w *world) dump() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for it := w.Client.Scan(ctx, 0, w.Prefix+"*", 1000).Iterator(); it.Next(ctx); {
		key := it.Val()
		all[key] = w.content(key)
	}
	return all
}

func (w *world) content(key string) string {
	w.t.Helper()
	var content any
	var err error
	switch typ := w.Client.Type(ctx, key).Val(); typ {
	case "string":
		content, err = w.Client.Get(ctx, key).Result()
	case "list":
		content, err = w.Client.LRange(ctx, key, 0, -1).Result()
	case "hash":
		content, err = w.Client.HGetAll(ctx, key).Result() // fmt sorts it
	case "zset":
		content, err = w.Client.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "stream":
		content, err = w.Client.XRange(ctx, key, "-", "+").Result()
	case "set":
		var members []string
		members, err = w.Client.SMembers(ctx, key).Result()
		slices.Sort(members)
		content = members
	default:
		require.Fail(w.t, "unexpected type", "%s is a %s", key, typ)
	}
	require.NoError(w.t, err, key)
	return fmt.Sprintf("%v, expires: %t", content, w.Client.PTTL(ctx, key).Val() >= 0)
}

// unchanged runs f and requires that nothing under the prefix changed.
func (w *world) unchanged(f func()) {
	w.t.Helper()
	before := w.dump()
	f()
	require.Equal(w.t, before, w.dump())
}

// unchangedBut is unchanged, but for one key.
func (w *world) unchangedBut(key string, f func()) {
	w.t.Helper()
	before := w.dump()
	f()
	after := w.dump()
	delete(before, key)
	delete(after, key)
	require.Equal(w.t, before, after)
}

// onlyAsks requires that nothing is changed, but that somebody of the group asked who does not know
// of an end, and when.
func (w *world) onlyAsks(group string, run func()) {
	w.t.Helper()
	stats := w.keys.Stats(group)
	w.unchanged(func() {
		fields := []string{"asked", "lasting"}
		before := w.Client.HMGet(ctx, stats, fields...).Val()
		run()
		require.InDelta(w.t, w.now(), must(w.Client.HGet(ctx, stats, "asked").Int64()), 5000)
		require.Equal(w.t, "1", w.Client.HGet(ctx, stats, "lasting").Val())
		for i, field := range fields {
			if before[i] == nil {
				w.Client.HDel(ctx, stats, field)
			} else {
				w.Client.HSet(ctx, stats, field, before[i])
			}
		}
	})
}

// sameOrder is require.Equal for long lists: it shows the first difference only.
func sameOrder(t tb, want, got []string) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i], got[i], "at %d of %d", i, len(want))
	}
	require.Equal(t, len(want), len(got))
}
