package queuetest

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// limitText is the form of a limit.
const limitText = `\d+(\.\d+)?:\d+:\d+`

// The forms of stored values.
var (
	groupForm    = regexp.MustCompile(`^(-1|\d+) (-1|\d+) (-1|[1-9]\d*)( single)?( whole)?( limit:` + limitText + `)?( history:\d+:\d+)?( set:` + limitText + `)?( set_history:\d+:\d+)?$`)
	bucketForm   = regexp.MustCompile(`^\d+\.\d\d \d+ \d+ \d+ ([^ :]+:\d+|-) \d+\.\d\d$`)
	activeForm   = regexp.MustCompile(`^([0-9A-Za-z]+|-) \d+ \d+ \d+$`)
	optionsForm  = regexp.MustCompile(`^(max_deliveries:(-1|[1-9]\d*))?( ?delay_id:[^ :]+( window:\d+)?( mode:(keep|reject))?)?( ?(expires_at:\d+ ?)?(max_lateness:\d+ )?on_expiry:(drop|dead))?$`)
	tokenForm    = regexp.MustCompile(`^[^: ]+:\d+:\d+:\d+$`)
	deliveryForm = regexp.MustCompile(`(?s)^\d+ (d|r|-) [^ @]+(@\d+:\d+:\d+)?( .*)?$`)
	suspectForm  = regexp.MustCompile(`^[1-9]\d* (alone|-) (-|[^: ]+:\d+:\d+:\d+)$`)
	claimForm    = regexp.MustCompile(`^\d+:\d+( [^ :]+:\d+)+$`)
	addressForm  = regexp.MustCompile(`^.+\|[^| ]+$`)
	numberForm   = regexp.MustCompile(`^\d+$`)
	faultForm    = regexp.MustCompile(`(?s)^\d+ .`)
	latestForm   = regexp.MustCompile(`^\d+ \d+ \d+$`)
	endingForm   = regexp.MustCompile(`^\d+ [1-3]$`)
)

// inspection is the check of one topic.
type inspection struct {
	*snapshot
	found []string

	groups  []string // including those being removed
	bodies  map[string]bool
	holders map[string][]string // id -> groups that have it, in any state
}

func (s *snapshot) violations() []string {
	i := &inspection{snapshot: s, bodies: map[string]bool{}, holders: map[string][]string{}}
	i.groups = s.groups()
	for _, id := range s.get("messages", "").list {
		i.bodies[id] = true
	}
	i.keys()
	i.meta()
	for _, g := range i.groups {
		i.group(g)
	}
	i.messages()
	i.names()
	i.schedules()
	i.scheduler()
	i.counters()
	slices.Sort(i.found)
	return i.found
}

func (i *inspection) report(format string, args ...any) {
	i.found = append(i.found, fmt.Sprintf("topic %q: ", i.topic)+fmt.Sprintf(format, args...))
}

// keys checks that all keys are known to the layout and have their types.
func (i *inspection) keys() {
	if i.exists() && !i.listed {
		i.report("it is not in the registry")
	}
	for _, v := range i.values {
		kind, known := kinds[v.kind]
		switch {
		case !known, kind.of == "" && v.kind != "counters" && v.key != i.base()+v.kind, kind.of != "" && v.key != i.base()+v.kind+":"+v.name:
			i.report("unknown key %q", v.key)
			continue
		case v.typ != kind.typ:
			i.report("%s is a %s, not a %s", v.key, v.typ, kind.typ)
			continue
		case kind.of == "group" && !slices.Contains(i.groups, v.name):
			i.report("%s is of a group that is not registered: %s", v.key, v.summary())
		}
		if kind.expires && v.ttl < 0 {
			i.report("%s has no TTL", v.key)
		}
		if !kind.expires && v.ttl >= 0 {
			i.report("%s has a TTL", v.key)
		}
		if v.kind == "publisher" && !numberForm.MatchString(v.text) {
			i.report("%s is %q, not the number of a call", v.key, v.text)
		}
		if v.kind == "claim" && !claimForm.MatchString(v.text) {
			i.report("%s is %q, not a claim", v.key, v.text)
		}
	}
}

func (i *inspection) base() string {
	return strings.TrimSuffix(queue.NewKeys(i.prefix, i.topic).Meta(), "meta")
}

func (i *inspection) meta() {
	meta := i.get("meta", "").fields
	if i.exists() && !queue.KnowsLayout(meta["layout"]) {
		i.report("meta: layout is %q, not %q", meta["layout"], queue.Layout)
	}
	if i.exists() && meta["groups"] == "" {
		i.report("meta: the set of groups has no version")
	}
	if i.streaming() {
		i.stream(meta)
	}
	for field, value := range meta {
		if field != "layout" && field != "groups" && (field != "maxlen" || !i.streaming()) {
			i.report("meta: unknown field %q: %q", field, value)
		}
	}
	for name, ends := range i.get("idle", "").scores {
		i.instant(ends, "group %q: its end in idle", name)
	}
	paused := i.get("paused", "").fields
	for group, pause := range paused {
		if since, _, _ := strings.Cut(pause, " "); !numberForm.MatchString(since) {
			i.report("paused: %q is paused by %q, which has no time in ms", group, pause)
		}
	}
	for group, ends := range i.get("resumes", "").scores {
		i.instant(ends, "group %q: the end of its pause", group)
		if _, there := paused[group]; !there {
			i.report("resumes: %q is not paused", group)
		}
	}
	for name, active := range i.get("active", "").fields {
		if !activeForm.MatchString(active) || !strings.Contains(i.get("groups", "").fields[name]+" ", " single ") {
			i.report("group %q: its active subscription is %q", name, active)
			continue
		}
		part := strings.Fields(active)
		_, stopped := paused[""]
		_, rests := paused[name]
		if part[0] != "-" && part[2] == "0" && !stopped && !rests && len(i.get("waiters", name).scores)+len(i.get("limited", name).scores) == 0 {
			i.report("group %q: its active subscription neither waits nor has to claim: %q", name, active)
		}
	}
	for name, bucket := range i.get("limits", "").fields {
		if !bucketForm.MatchString(bucket) || i.get("groups", "").fields[name] == "" {
			i.report("group %q: the state of its limit is %q", name, bucket)
		}
	}
	for name, options := range i.get("groups", "").fields {
		if !groupForm.MatchString(options) {
			i.report("group %q: its options are %q", name, options)
		}
	}
}

func (s *snapshot) streaming() bool { return s.get("meta", "").fields["layout"] == queue.StreamLayout }

// stream checks that a topic with a stream has only the data that it may have.
func (i *inspection) stream(meta map[string]string) {
	if !numberForm.MatchString(meta["maxlen"]) {
		i.report("meta: maxlen is %q, not a number", meta["maxlen"])
	}
	if registered := i.get("groups", "").fields; len(registered) != 1 || registered[queue.StreamGroup] == "" {
		i.report("it has a stream, and the groups %q", registered)
	}
	for _, v := range i.values {
		if slices.Contains([]string{"refs", "idle", "claim", "ready", "unack", "leases", "waiters", "resting", "standby", "limited"}, v.kind) {
			i.report("it has a stream, and %s: %s", v.key, v.summary())
		}
	}
}

// group checks that each message is in one state of the group, with all data of the state.
func (i *inspection) group(name string) {
	states := map[string][]string{}
	enter := func(id, state string) {
		if len(states[id]) == 0 {
			i.holders[id] = append(i.holders[id], name)
		}
		states[id] = append(states[id], state)
	}
	for n, entry := range i.get("ready", name).list {
		id, due, _ := strings.Cut(entry, ":")
		if queue.IsWindow(name) && id == strings.Repeat("0", queue.IDLength) && len(due) == queue.IDLength {
			continue // the message was cancelled
		}
		if len(id) != queue.IDLength || !numberForm.MatchString(due) {
			i.report("group %q: ready[%d] is %q, not id:due", name, n, entry)
			continue
		}
		if id == strings.Repeat("0", queue.IDLength) { // a void entry
			continue
		}
		enter(id, "ready")
	}
	leases := i.get("leases", name).fields
	for id := range i.get("unack", name).scores {
		enter(id, "unack")
		if token, ok := leases[id]; !ok {
			i.report("group %q: message %s is in unack without a lease", name, id)
		} else if !tokenForm.MatchString(token) {
			i.report("group %q: message %s: its lease is %q, not subscription:claim:since:due", name, id, token)
		}
	}
	for id := range leases {
		if _, ok := i.get("unack", name).scores[id]; !ok {
			i.report("group %q: message %s has a lease and is not in unack", name, id)
		}
	}
	records := i.get("deliveries", name).fields
	for _, state := range []string{"retry", "dead"} {
		for id, score := range i.get(state, name).scores {
			enter(id, state)
			i.instant(score, "group %q: message %s: its score in %s", name, id, state)
			if _, ok := records[id]; !ok {
				i.report("group %q: message %s is in %s without a record of deliveries", name, id, state)
			}
		}
	}
	for id, in := range states {
		if len(in) > 1 {
			i.report("group %q: message %s is in several places: %s", name, id, strings.Join(in, ", "))
		}
		i.identifier(id, "group %q: %s", name, strings.Join(in, ", "))
	}
	for id, record := range records {
		if len(states[id]) == 0 {
			i.report("group %q: message %s has a record of deliveries (%q) and no state", name, id, record)
		}
		if !deliveryForm.MatchString(record) {
			i.report("group %q: message %s: its record of deliveries is %q", name, id, record)
		}
	}
	for id, entry := range i.get("suspects", name).fields {
		if in := states[id]; len(in) == 0 || slices.Contains(in, "retry") || slices.Contains(in, "dead") {
			i.report("group %q: message %s is in suspects (%q) and %s", name, id, entry,
				cmp.Or(strings.Join(in, ", "), "has no state"))
		}
		if _, ok := records[id]; !ok {
			i.report("group %q: message %s is in suspects without a record of deliveries", name, id)
		}
		if !suspectForm.MatchString(entry) {
			i.report("group %q: message %s: its entry in suspects is %q", name, id, entry)
		}
	}
	for _, kind := range []string{"waiters", "resting", "standby", "limited"} {
		for address, deadline := range i.get(kind, name).scores {
			if !addressForm.MatchString(address) {
				i.report("group %q: waiter %q is not an address", name, address)
			}
			if kind == "limited" { // the fraction keeps the order
				deadline = math.Floor(deadline)
			}
			i.instant(deadline, "group %q: the deadline of waiter %q", name, address)
		}
	}
	for field, value := range i.get("stats", name).fields {
		known := slices.Contains(queue.GroupCounters, field) || slices.Contains([]string{"seen", "asked", "shown", "settled", "returned", "lasting", "limited", "limited_ms", "history_failed_at"}, field)
		form := numberForm
		switch field {
		case "ending":
			known, form = true, endingForm
		case "latest_ms":
			known, form = true, latestForm
		}
		if !known || !form.MatchString(value) {
			i.report("group %q: stats: %q is %q", name, field, value)
		}
	}
}

// counters checks what the topic has counted.
func (i *inspection) counters() {
	for field, value := range i.get("counters", "").fields {
		if !slices.Contains(queue.TopicCounters, field) || !numberForm.MatchString(value) {
			i.report("stats: %q is %q", field, value)
		}
	}
}

// names checks that delay IDs are complete, and that each waiting message has its own.
func (i *inspection) names() {
	names, taken := i.get("names", "").fields, i.get("taken", "").scores
	for name, id := range names {
		i.identifier(id, "names, delay id %q", name)
		if _, ok := taken[name]; !ok {
			i.report("delay id %q is in names and not in taken", name)
		}
	}
	for name, free := range taken {
		i.instant(free, "delay id %q: when it is free", name)
		if _, ok := names[name]; !ok {
			i.report("delay id %q is in taken and not in names", name)
		}
	}
	for id, due := range i.get("pending", "").scores {
		_, after, ok := strings.Cut(i.get("options", "").fields[id], "delay_id:")
		name, _, _ := strings.Cut(after, " ")
		if ok && due > float64(i.now) && (names[name] != id || taken[name] < due) {
			i.report("message %s waits until %.0f and does not have its delay id %q: it is that of %q until %.0f", id, due, name, names[name], taken[name])
		}
	}
}

// recurring is the record of a schedule, of which only the version is left when it is removed.
var recurring = regexp.MustCompile(`^[1-9]\d*( \d+ \d+ \d+ \d+ \d+ \d+ (-|\d+(,\d+)*) .*)?$`)

func (i *inspection) schedules() {
	for name, record := range i.get("schedules", "").fields {
		if name != ":" && !recurring.MatchString(record) {
			i.report("the record of schedule %q is %q", name, record)
		}
	}
}

// messages checks that each body, and the data beside it, belongs to a message in some state.
func (i *inspection) messages() {
	pending := i.get("pending", "").scores
	for id, due := range pending {
		i.instant(due, "message %s: its due time in pending", id)
		i.identifier(id, "pending")
		if groups := i.holders[id]; len(groups) > 0 {
			i.report("message %s is in pending and in groups %q", id, groups)
		}
	}
	for id := range pending {
		if !i.bodies[id] {
			i.report("message %s is in pending without a body", id)
		}
	}
	for id, groups := range i.holders {
		if !i.bodies[id] {
			i.report("message %s is in groups %q without a body", id, groups)
		}
	}
	for id := range i.bodies {
		if _, ok := pending[id]; !ok && len(i.holders[id]) == 0 {
			i.report("message %s has a body and no state", id)
		}
	}
	refs := i.get("refs", "").fields
	for id, text := range refs {
		if n, err := strconv.Atoi(text); err != nil || n != len(i.holders[id]) || n < 1 {
			i.report("message %s: refs says %q groups need it, and it is in %d: %q", id, text, len(i.holders[id]), i.holders[id])
		}
	}
	for id, groups := range i.holders {
		if _, ok := refs[id]; !ok && len(groups) > 1 {
			i.report("message %s is in %d groups and not in refs", id, len(groups))
		}
	}
	for id, options := range i.get("options", "").fields {
		if !i.bodies[id] {
			i.report("message %s has options (%q) and no body", id, options)
		}
		if !optionsForm.MatchString(options) {
			i.report("message %s: its options are %q", id, options)
		}
	}
}

// scheduler checks that the next promotion is planned no later than the next event.
func (i *inspection) scheduler() {
	fields := i.get("scheduler", "").fields
	for field, value := range fields {
		switch field {
		case "next", "until", "grace", "look":
			if !numberForm.MatchString(value) {
				i.report("scheduler: %s is %q, not a time in ms", field, value)
			}
		case "fault":
			if !faultForm.MatchString(value) {
				i.report("scheduler: fault is %q, not a time in ms and an error", value)
			}
		case "holder", "standby":
			if !addressForm.MatchString(value) {
				i.report("scheduler: %s is %q, not an address", field, value)
			}
		default:
			i.report("scheduler: unknown field %q: %q", field, value)
		}
	}
	if (fields["standby"] == "") != (fields["until"] == "") {
		i.report("scheduler: standby is %q, until is %q: both or none", fields["standby"], fields["until"])
	}
	if fields["standby"] != "" && fields["standby"] == fields["holder"] {
		i.report("scheduler: %q is both holder and standby", fields["holder"])
	}
	event, what := i.nextEvent()
	if what == "" {
		return
	}
	switch next, err := strconv.ParseFloat(fields["next"], 64); {
	case fields["next"] == "":
		i.report("scheduler: it has no next event, and %s is at %.0f", what, event)
	case err == nil && next > max(event, float64(i.now)): // otherwise the next promotion handles it
		i.report("scheduler: the next event is at %.0f, and %s is %.0f ms earlier, at %.0f", next, what, next-event, event)
	}
}

// nextEvent returns the earliest time at which the scheduler has work, and which; "" if it never
// has.
func (i *inspection) nextEvent() (event float64, what string) {
	event = math.Inf(1)
	earliest := func(scores map[string]float64, wait float64, format string, args ...any) {
		for member, score := range scores {
			if at := math.Floor(score) + wait; at < event {
				event, what = at, fmt.Sprintf(format, args...)+" "+member
			}
		}
	}
	registered := i.get("groups", "").fields
	rests := i.streaming() && len(i.get("paused", "").fields) > 0 // due messages wait for Resume
	if len(registered) > 0 && !rests {
		earliest(i.get("pending", "").scores, 0, "the due time of message")
	}
	for g := range registered {
		if !rests {
			earliest(i.get("retry", g).scores, 0, "the retry in group %q of message", g)
		}
		earliest(i.get("unack", g).scores, 0, "the end of the lease in group %q of message", g)
		options, dead := append(strings.Fields(registered[g]), "", "", ""), i.get("dead", g).scores
		if retention, err := strconv.ParseFloat(options[1], 64); err == nil && retention >= 0 {
			earliest(dead, retention, "the end of the retention in group %q of message", g)
		}
		if most, err := strconv.Atoi(options[2]); err == nil && most >= 0 && len(dead) > most {
			earliest(dead, 0, "one dead message too many in group %q since message", g)
		}
		if part := strings.Fields(i.get("active", "").fields[g]); len(part) == 4 {
			if ends, err := strconv.ParseFloat(part[2], 64); err == nil && ends > 0 {
				earliest(map[string]float64{part[0]: ends}, 0, "the deadline in group %q of", g)
			}
		}
		if ends, ok := i.get("idle", "").scores[g]; ok {
			earliest(map[string]float64{g: ends}, 0, "the end of group")
		}
	}
	return event, what
}

// identifier checks that an id is a ULID.
func (i *inspection) identifier(id, format string, args ...any) {
	if _, err := ulid.ParseStrict(id); err != nil {
		i.report("%q is not a message's id (%v), in %s", id, err, fmt.Sprintf(format, args...))
	}
}

// instant checks that a score is a whole number of milliseconds.
func (i *inspection) instant(ms float64, format string, args ...any) {
	if ms != math.Trunc(ms) || ms < 0 || math.IsInf(ms, 0) {
		i.report("%s is %v, not a time in ms", fmt.Sprintf(format, args...), ms)
	}
}
