package queue

import (
	"slices"
	"strconv"
	"strings"
)

// Layout is the version of everything that is stored: the keys, the fields, the scripts' forms.
const Layout = "2"

// StreamLayout is the layout of a topic with a stream. Programs older than streams refuse it as
// another version.
const StreamLayout = Layout + " stream"

// The layout of another topic may have marks after the version: "single" if the topic has, or once
// had, a group with SingleActive, "limits" for groups with a limit, and "history" for those with a
// history. Programs that do not know the setting refuse it as another version. The snippet marks
// writes the same.
const (
	singleMark  = " single"
	limitsMark  = " limits"
	historyMark = " history"
)

// marks are what the layout of a topic tells besides the version.
type marks struct{ single, bounded, recorded bool }

// readLayout returns which marks the layout of a topic has, and whether this program knows it.
func readLayout(text string) (m marks, known bool) {
	rest, recorded := strings.CutSuffix(text, historyMark)
	rest, bounded := strings.CutSuffix(rest, limitsMark)
	rest, single := strings.CutSuffix(rest, singleMark)
	return marks{single, bounded, recorded}, rest == Layout || text == StreamLayout
}

// KnowsLayout tells whether this program knows a layout.
func KnowsLayout(text string) bool {
	_, known := readLayout(text)
	return known
}

// StreamGroup is the only group of a topic with a stream. Its ready list is the stream.
const StreamGroup = "stream"

// windowPrefix begins the names of takeover windows, "window:<ms>" with the end of the window. The
// copy of a window that a new group makes is "window:<ms>:<group>".
var windowPrefix = registerScript.constantText("window_prefix")

// IsWindow tells whether a name is that of a takeover window or of a copy of one. No consumer group
// may have such a name.
func IsWindow(name string) bool {
	ends, ours := strings.CutPrefix(name, windowPrefix)
	ends, _, _ = strings.Cut(ends, ":")
	return ours && ends != "" && strings.Trim(ends, "0123456789") == ""
}

// isCopy tells whether a name is that of a copy of a window.
func isCopy(name string) bool { return IsWindow(name) && strings.Count(name, ":") > 1 }

// windowEnd returns the end of a window in ms, as its name tells, "0" without a window.
func windowEnd(window string) string {
	if window == "" {
		return "0"
	}
	return strings.TrimPrefix(window, windowPrefix)
}

// Keys has the name of every key of a topic. All share one hash tag, so that a script may use all
// of them in a Cluster. docs/redis-keys.md describes each.
type Keys struct {
	base string // "<prefix>:{<topic>}:"
}

// NewKeys returns the keys of a topic. The prefix must be free of braces.
func NewKeys(prefix, topic string) Keys {
	return Keys{base: prefix + ":{" + encodeTopic(topic) + "}:"}
}

var topicEncoder = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// encodeTopic encodes the characters that would break a hash tag. The tag of a topic without them
// is its name, so a key of that name is in the same slot.
func encodeTopic(topic string) string { return topicEncoder.Replace(topic) }

// Keys of the topic.

func (k Keys) Meta() string      { return k.base + "meta" }
func (k Keys) Messages() string  { return k.base + "messages" }
func (k Keys) Options() string   { return k.base + "options" }
func (k Keys) Refs() string      { return k.base + "refs" }
func (k Keys) Pending() string   { return k.base + "pending" }
func (k Keys) Groups() string    { return k.base + "groups" }
func (k Keys) Scheduler() string { return k.base + "scheduler" }
func (k Keys) Idle() string      { return k.base + "idle" }
func (k Keys) Names() string     { return k.base + "names" }
func (k Keys) Taken() string     { return k.base + "taken" }
func (k Keys) Paused() string    { return k.base + "paused" }
func (k Keys) Resumes() string   { return k.base + "resumes" }
func (k Keys) Counters() string  { return k.base + "stats" }
func (k Keys) Schedules() string { return k.base + "schedules" }
func (k Keys) Active() string    { return k.base + "active" }
func (k Keys) Programs() string  { return k.base + "programs" }
func (k Keys) Limits() string    { return k.base + "limits" }
func (k Keys) Ended() string     { return k.base + "ended" }
func (k Keys) Restored() string  { return k.base + "restored" }

// Keys that hold the number of a publisher's last call, a subscription's last claim, and the result
// of one operation of an operator.

func (k Keys) Publisher(id string) string       { return k.base + "publisher:" + id }
func (k Keys) Claim(subscription string) string { return k.base + "claim:" + subscription }
func (k Keys) Operation(token string) string    { return k.base + "operation:" + token }

// Handling returns the key of the occurrence of a recurring schedule that a group handles. The name
// of the schedule is encoded, so it has no colon.
func (k Keys) Handling(schedule, group string) string {
	return k.Handlings() + EncodeName(schedule) + ":" + group
}

// Place returns the key of one of the places that a key of messages has in a group. No encoded name
// of a schedule begins like it.
func (k Keys) Place(number int, key, group string) string {
	return k.Handlings() + "@" + strconv.Itoa(number) + "@" + EncodeName(key) + ":" + group
}

// Handlings returns what all keys of Handling begin with.
func (k Keys) Handlings() string { return k.base + "handling:" }

// Keys of one group.

func (k Keys) Ready(group string) string      { return k.base + "ready:" + group }
func (k Keys) Unack(group string) string      { return k.base + "unack:" + group }
func (k Keys) Leases(group string) string     { return k.base + "leases:" + group }
func (k Keys) Retry(group string) string      { return k.base + "retry:" + group }
func (k Keys) Deliveries(group string) string { return k.base + "deliveries:" + group }
func (k Keys) Waiters(group string) string    { return k.base + "waiters:" + group }
func (k Keys) Dead(group string) string       { return k.base + "dead:" + group }
func (k Keys) Resting(group string) string    { return k.base + "resting:" + group }
func (k Keys) Stats(group string) string      { return k.base + "stats:" + group }
func (k Keys) Suspects(group string) string   { return k.base + "suspects:" + group }
func (k Keys) Workers(group string) string    { return k.base + "workers:" + group }
func (k Keys) Standby(group string) string    { return k.base + "standby:" + group }
func (k Keys) Limited(group string) string    { return k.base + "limited:" + group }
func (k Keys) History(group string) string    { return k.base + "history:" + group }

func (k Keys) RestoredRetries(group string) string { return k.base + "restored_retries:" + group }

// kind is what a name of a key in the header of a script stands for.
type kind struct {
	typ string                    // of Redis
	key func(Keys, Target) string // nil: only the call knows the key
	of  owner

	expires bool // the key may have a TTL
}

// owner is what has a key of a kind.
type owner int

const (
	ofOther owner = iota // a call, or a window, whose list is that of a group
	ofEachTopic
	ofEachGroup
)

// kinds has the keys of a topic by their names: the part of the key that says what it is. Besides,
// it has the names that headers have for keys by another part.
var kinds = map[string]kind{
	"meta": ofTopic("hash", Keys.Meta), "messages": ofTopic("hash", Keys.Messages), "options": ofTopic("hash", Keys.Options),
	"refs": ofTopic("hash", Keys.Refs), "pending": ofTopic("zset", Keys.Pending), "groups": ofTopic("hash", Keys.Groups),
	"scheduler": ofTopic("hash", Keys.Scheduler), "idle": ofTopic("zset", Keys.Idle), "names": ofTopic("hash", Keys.Names),
	"taken": ofTopic("zset", Keys.Taken), "paused": ofTopic("hash", Keys.Paused), "resumes": ofTopic("zset", Keys.Resumes),
	"schedules": ofTopic("hash", Keys.Schedules), "programs": ofTopic("zset", Keys.Programs), "active": ofTopic("hash", Keys.Active),
	"limits": ofTopic("hash", Keys.Limits), "ended": expiring(ofTopic("stream", Keys.Ended)), "restored": expiring(ofTopic("zset", Keys.Restored)),
	"handling": {typ: "string"}, "publisher": {typ: "string"}, "claim": {typ: "string"}, "operation": {typ: "string"},

	"ready": ofGroup("list", Keys.Ready), "unack": ofGroup("zset", Keys.Unack), "leases": ofGroup("hash", Keys.Leases),
	"retry": ofGroup("zset", Keys.Retry), "deliveries": ofGroup("hash", Keys.Deliveries), "waiters": ofGroup("zset", Keys.Waiters),
	"dead": ofGroup("zset", Keys.Dead), "resting": ofGroup("zset", Keys.Resting), "stats": ofGroup("hash", Keys.Stats),
	"suspects": ofGroup("hash", Keys.Suspects), "workers": ofGroup("hash", Keys.Workers), "standby": ofGroup("zset", Keys.Standby),
	"limited": ofGroup("zset", Keys.Limited), "history": expiring(ofGroup("stream", Keys.History)),
	"restored_retries": expiring(ofGroup("zset", Keys.RestoredRetries)),

	"counters": ofTopic("hash", Keys.Counters),
	// Without a window these are keys of a group without a name, which does not exist.
	"kept":   {typ: "list", key: func(k Keys, on Target) string { return k.Ready(on.Window) }},
	"copied": {typ: "list", key: func(k Keys, on Target) string { return k.Ready(on.Window + ":" + on.Group) }},
}

func ofTopic(typ string, key func(Keys) string) kind {
	return kind{typ: typ, key: func(k Keys, _ Target) string { return key(k) }, of: ofEachTopic}
}

func ofGroup(typ string, key func(Keys, string) string) kind {
	return kind{typ: typ, key: func(k Keys, on Target) string { return key(k, on.Group) }, of: ofEachGroup}
}

// expiring returns a kind whose keys may have a TTL.
func expiring(k kind) kind {
	k.expires = true
	return k
}

// All returns the keys that a topic with groups of these names may have, except those of single
// calls, in order.
func (k Keys) All(names []string) (keys []string) {
	for _, kind := range kinds {
		if kind.of == ofEachTopic {
			keys = append(keys, kind.key(k, Target{}))
		}
		for _, name := range names {
			if kind.of == ofEachGroup {
				keys = append(keys, kind.key(k, Target{Group: name}))
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// TypeOf returns the Redis type of a key of a topic, and whether it may have a TTL. It returns ""
// for an unknown key. A name that is none of Keys is that of a topic's stream, of which its owner
// may have a TTL.
func TypeOf(key string) (typ string, expires bool) {
	_, name, ours := strings.Cut(key, "}:")
	if !ours {
		return "stream", true
	}
	of, _, _ := strings.Cut(name, ":")
	return kinds[of].typ, kinds[of].expires
}

// Registry names the set of all topics under a prefix. It is in a slot of its own.
func Registry(prefix string) string { return prefix + ":topics" }

// AuditLog names the stream of operators' acts under a prefix. It is in a slot of its own.
func AuditLog(prefix string) string { return prefix + ":audit" }

// Partitionings names the hash of the numbers of partitions that operators have set, by topic. It
// is in a slot of its own.
func Partitionings(prefix string) string { return prefix + ":partitions" }

// IgnoredProblems names the hash of the problems that operators ignore. It is in a slot of its own.
func IgnoredProblems(prefix string) string { return prefix + ":ignored" }

// NewTopics names the channel on which topics that enter the registry of a database are announced.
// All databases of a server share its channels. Mailboxes need no database in their names, which
// are random.
func NewTopics(prefix string, database int) string {
	return prefix + ":new-topics:" + strconv.Itoa(database)
}

// MailboxChannel names the channel on which a process is woken.
func MailboxChannel(prefix, id string) string { return prefix + ":mailbox:" + id }

// ShardedMailbox names a sharded channel on which a process is woken. It is in the slot of a topic.
// The scripts tell sharded channels by the brace, and Go code by servers.Sharded.
func ShardedMailbox(prefix, id, topic string) string {
	return MailboxChannel(prefix, id) + ":{" + encodeTopic(topic) + "}"
}

// MailboxRule returns the ACL rule that allows the channels of all mailboxes.
func MailboxRule(prefix string) string { return "&" + MailboxChannel(prefix, "*") }

// TopicsRule returns the ACL rule that allows the channel of new topics, of any database.
func TopicsRule(prefix string) string { return "&" + prefix + ":new-topics:*" }
