package queuetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// kinds are all keys that a topic may have, and their types in Redis. They are named by the first
// part after the hash tag.
var kinds = map[string]struct {
	typ     string
	of      string // what the rest of the key names; "": there is no rest
	expires bool
}{
	"meta":             {typ: "hash"},
	"messages":         {typ: "hash"},
	"options":          {typ: "hash"},
	"refs":             {typ: "hash"},
	"pending":          {typ: "zset"},
	"groups":           {typ: "hash"},
	"scheduler":        {typ: "hash"},
	"idle":             {typ: "zset"},
	"names":            {typ: "hash"},
	"taken":            {typ: "zset"},
	"paused":           {typ: "hash"},
	"schedules":        {typ: "hash"},
	"programs":         {typ: "zset"},
	"resumes":          {typ: "zset"},
	"publisher":        {typ: "string", of: "publisher", expires: true},
	"operation":        {typ: "string", of: "operation", expires: true},
	"claim":            {typ: "string", of: "subscription", expires: true},
	"handling":         {typ: "string", of: "schedule and group", expires: true},
	"ready":            {typ: "list", of: "group"},
	"unack":            {typ: "zset", of: "group"},
	"leases":           {typ: "hash", of: "group"},
	"retry":            {typ: "zset", of: "group"},
	"deliveries":       {typ: "hash", of: "group"},
	"waiters":          {typ: "zset", of: "group"},
	"dead":             {typ: "zset", of: "group"},
	"resting":          {typ: "zset", of: "group"},
	"stats":            {typ: "hash", of: "group"},
	"counters":         {typ: "hash"}, // the topic's stats
	"suspects":         {typ: "hash", of: "group"},
	"workers":          {typ: "hash", of: "group"},
	"active":           {typ: "hash"},
	"limits":           {typ: "hash"},
	"ended":            {typ: "stream", expires: true},
	"restored":         {typ: "zset", expires: true},
	"restored_retries": {typ: "zset", of: "group", expires: true},
	"history":          {typ: "stream", of: "group", expires: true},
	"limited":          {typ: "zset", of: "group"},
	"standby":          {typ: "zset", of: "group"},
}

// value is the value of one key.
type value struct {
	key  string
	kind string // first part of the key after the hash tag
	name string // the rest of it: a group, a publisher, a subscription
	typ  string // in Redis
	ttl  time.Duration

	text   string             // of a string
	list   []string           // of a list; the ids of messages
	fields map[string]string  // of a hash but messages
	scores map[string]float64 // of a zset
}

func (v *value) summary() string {
	switch {
	case v.fields != nil:
		return fmt.Sprintf("%d fields, such as %q", len(v.fields), first(v.fields))
	case v.scores != nil:
		return fmt.Sprintf("%d members, such as %q", len(v.scores), first(v.scores))
	case v.list != nil:
		return fmt.Sprintf("%d entries, such as %q", len(v.list), v.list[0])
	default:
		return fmt.Sprintf("%q", v.text)
	}
}

func first[V any](m map[string]V) string { return slices.Min(slices.Collect(maps.Keys(m))) }

// snapshot is the whole data of a topic at one time.
type snapshot struct {
	prefix string
	topic  string
	listed bool // in the registry
	values []*value
	now    int64 // the server's time just after it
}

// get returns the key's value. It is empty if the key does not exist or has another type.
func (s *snapshot) get(kind, name string) *value {
	for _, v := range s.values {
		if v.kind == kind && v.name == name && v.typ == kinds[kind].typ {
			return v
		}
	}
	return &value{kind: kind, name: name}
}

// exists returns whether the topic has keys that do not expire. An erased topic has only keys that
// do.
func (s *snapshot) exists() bool {
	return slices.ContainsFunc(s.values, func(v *value) bool { return !kinds[v.kind].expires })
}

// readAll finds the topics, in the registry and by their keys, and reads each.
func readAll(ctx context.Context, client redis.UniversalClient, prefix string) (topics []*snapshot, found []string, err error) {
	byName := map[string]*snapshot{}
	keys := map[string][]string{}
	topic := func(name string) *snapshot {
		if byName[name] == nil {
			byName[name] = &snapshot{prefix: prefix, topic: name}
		}
		return byName[name]
	}

	scanned, err := scan(ctx, client, prefix)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range scanned {
		name, _, ok := parse(prefix, key)
		if ok {
			topic(name)
			keys[name] = append(keys[name], key)
		} else if key != queue.Registry(prefix) && key != queue.AuditLog(prefix) && key != queue.Partitionings(prefix) && key != queue.IgnoredProblems(prefix) {
			found = append(found, fmt.Sprintf("unknown key %q", key))
		}
	}
	// A topic is entered in the registry before it has keys. So the registry, read after the keys,
	// has all.
	err = queue.Topics(ctx, servers.MustClient(client), prefix, func(name string) { topic(name).listed = true })
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		found = append(found, fmt.Sprintf("%s is not a set", queue.Registry(prefix)))
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	if ttl, err := client.PTTL(ctx, queue.Registry(prefix)).Result(); err != nil {
		return nil, nil, err
	} else if ttl >= 0 {
		found = append(found, fmt.Sprintf("%s has a TTL", queue.Registry(prefix)))
	}
	for name, s := range byName {
		if err := s.read(ctx, client, keys[name]); err != nil {
			return nil, nil, fmt.Errorf("topic %q: %w", name, err)
		}
		topics = append(topics, s)
	}
	slices.SortFunc(topics, func(a, b *snapshot) int { return cmp.Compare(a.topic, b.topic) })
	slices.Sort(found)
	return topics, found, nil
}

var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`)

// scan returns every key under the prefix, each once.
func scan(ctx context.Context, client redis.UniversalClient, prefix string) ([]string, error) {
	var mu sync.Mutex // the nodes of a cluster are scanned concurrently
	keys := map[string]bool{}
	one := func(ctx context.Context, node *redis.Client) error {
		it := node.Scan(ctx, 0, escapeGlob.Replace(prefix)+":*", 1000).Iterator()
		for it.Next(ctx) {
			mu.Lock()
			keys[it.Val()] = true
			mu.Unlock()
		}
		return it.Err()
	}
	var err error
	switch client := client.(type) {
	case *redis.Client:
		err = one(ctx, client)
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, one)
	default:
		err = fmt.Errorf("a %T cannot be scanned", client)
	}
	return slices.Sorted(maps.Keys(keys)), err
}

var decodeTopic = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")

// parse splits "<prefix>:{<topic>}:<rest>".
func parse(prefix, key string) (topic, rest string, ok bool) {
	tagged, ok := strings.CutPrefix(key, prefix+":{")
	if !ok {
		return "", "", false
	}
	tag, rest, ok := strings.Cut(tagged, "}:")
	topic = decodeTopic.Replace(tag)
	return topic, rest, ok && queue.NewKeys(prefix, topic).Meta() == prefix+":{"+tag+"}:meta"
}

var errGroupsChange = errors.New("the set of groups changes too fast")

// read reads all keys in one transaction. The possible keys depend on the groups. So the groups are
// read first, and again if a group appeared in between.
func (s *snapshot) read(ctx context.Context, client redis.UniversalClient, scanned []string) error {
	k := queue.NewKeys(s.prefix, s.topic)
	names, err := readKeys(ctx, client, []string{k.Groups(), k.Idle()})
	for range 10 {
		if err != nil {
			return err
		}
		before := snapshot{values: names}
		keys := append([]string{k.Meta(), k.Messages(), k.Options(), k.Refs(), k.Pending(), k.Groups(), k.Scheduler(), k.Idle(),
			k.Names(), k.Taken(), k.Paused(), k.Resumes(), k.Schedules(), k.Programs()}, scanned...)
		for _, g := range before.groups() {
			keys = append(keys, k.Ready(g), k.Unack(g), k.Leases(g), k.Retry(g), k.Deliveries(g), k.Waiters(g), k.Dead(g), k.Resting(g), k.Stats(g), k.Suspects(g), k.Workers(g), k.Standby(g))
		}
		slices.Sort(keys)
		if s.values, err = readKeys(ctx, client, slices.Compact(keys)); err != nil {
			return err
		}
		if slices.Equal(before.groups(), s.groups()) {
			now, err := client.Time(ctx).Result()
			s.now = now.UnixMilli()
			return err
		}
		names = s.values
	}
	return errGroupsChange
}

// groups returns the registered groups and those that are being removed.
func (s *snapshot) groups() []string {
	groups := slices.Collect(maps.Keys(s.get("groups", "").fields))
	groups = slices.AppendSeq(groups, maps.Keys(s.get("idle", "").scores))
	slices.Sort(groups)
	return slices.Compact(groups)
}

// readKeys reads the keys at one time. All are in one slot.
func readKeys(ctx context.Context, client redis.UniversalClient, keys []string) ([]*value, error) {
	values, err := readIn(ctx, client.TxPipelined, keys)
	if redis.HasErrorPrefix(err, "OOM") || redis.HasErrorPrefix(err, "EXECABORT") {
		// A server whose memory is full accepts no transaction. Tests that fill it do not use the
		// topic then.
		values, err = readIn(ctx, client.Pipelined, keys)
	}
	return values, err
}

type pipelined func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error)

func readIn(ctx context.Context, pipelined pipelined, keys []string) ([]*value, error) {
	var values []*value
	var types []*redis.StatusCmd
	var collect []func()
	commands, err := pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			v := &value{key: key}
			_, rest, _ := strings.Cut(key, "}:")
			v.kind, v.name, _ = strings.Cut(rest, ":")
			if rest == "stats" { // of the topic, which differs from "stats:" of a group without a name
				v.kind = "counters"
			}
			typ, ttl := p.Type(ctx, key), p.PTTL(ctx, key)
			content := v.load(ctx, p)
			types = append(types, typ)
			collect = append(collect, func() {
				if v.typ = typ.Val(); v.typ != "none" {
					v.ttl = ttl.Val()
					content()
					values = append(values, v)
				}
			})
		}
		return nil
	})
	for _, command := range commands {
		// A key of a wrong type is a violation, not a failure.
		if reply := redis.Error(nil); command.Err() != nil && !errors.As(command.Err(), &reply) {
			return nil, command.Err() // what it has read of the reply is not the whole
		}
	}
	for i, f := range collect {
		if types[i].Val() == "" { // if no connection can be made, go-redis sets no errors on the commands
			return nil, err
		}
		f()
	}
	return values, nil
}

// load reads the value as the type that it should have.
func (v *value) load(ctx context.Context, p redis.Pipeliner) (collect func()) {
	switch kinds[v.kind].typ {
	case "hash":
		if v.kind == "messages" {
			cmd := p.HKeys(ctx, v.key) // not the bodies
			return func() { v.list = cmd.Val() }
		}
		cmd := p.HGetAll(ctx, v.key)
		return func() { v.fields = cmd.Val() }
	case "zset":
		cmd := p.ZRangeWithScores(ctx, v.key, 0, -1)
		return func() {
			v.scores = map[string]float64{}
			for _, z := range cmd.Val() {
				v.scores[z.Member.(string)] = z.Score
			}
		}
	case "list":
		cmd := p.LRange(ctx, v.key, 0, -1)
		return func() { v.list = cmd.Val() }
	case "string":
		cmd := p.Get(ctx, v.key)
		return func() { v.text = cmd.Val() }
	default:
		return func() {}
	}
}
