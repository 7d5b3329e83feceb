package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// doctor is one Diagnose.
type doctor struct {
	Diagnosis
	admin   *Admin
	options DiagnoseOptions
	gone    map[string]bool // addresses of schedulers that are not connected
	refused map[string]int  // the number of topics, by what the user lacks for them
	replica map[string]bool // servers that are replicas, by their Master
	quiet   []quiet         // groups that may be hung
}

// found is a topic that can be read.
type found struct {
	name   string
	topic  *operate.Topic
	counts operate.Counts
	stats  Stats
}

func (d *doctor) add(severity Severity, kind ProblemKind, p Problem) {
	p.Severity, p.Kind, p.Harm = severity, kind, cmp.Or(p.Harm, harmOf(kind, severity))
	d.Problems = append(d.Problems, p)
}

// forbid adds what the user may not do. It returns any other error, if it ends the work.
func (d *doctor) forbid(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrForbidden):
		d.add(Warning, Forbidden, Problem{Text: fmt.Sprintf("This Redis user may not look at %s: %v.", what, err)})
		return nil
	}
	return err
}

func (d *doctor) look(ctx context.Context) error {
	names, err := d.names(ctx)
	if err != nil {
		return err
	}
	all, err := d.read(ctx, names)
	if err != nil {
		return err
	}
	if err := d.servers(ctx, all); err != nil {
		return err
	}
	if err := d.connected(ctx, all); err != nil {
		return err
	}
	var details []*operate.Detail
	for _, f := range all {
		if master, err := f.topic.Master(ctx); err == nil && d.replica[master] {
			continue // nobody can do anything there
		}
		d.topic(f)
		for _, g := range f.stats.Groups {
			d.group(f, g)
			if g.Dead > 0 || g.Suspects > 0 {
				details = append(details, &operate.Detail{Topic: f.topic, Group: g.Group})
			}
		}
	}
	if err := d.hung(ctx); err != nil {
		return err
	}
	if err := d.details(ctx, details); err != nil {
		return err
	}
	if err := d.schedules(ctx, all); err != nil {
		return err
	}
	if d.options.Deep {
		if err := d.check(ctx, all); err != nil {
			return err
		}
	}
	return d.ignored(ctx)
}

// names returns the topics to look at, each once.
func (d *doctor) names(ctx context.Context) ([]string, error) {
	names, err := d.admin.Plain(ctx, d.options.Topics...)
	if errors.Is(err, ErrForbidden) {
		names, err = slices.Clone(d.options.Topics), nil
	}
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		for cursor := ""; ; {
			page, next, err := d.admin.Topics(ctx, cursor, 1000)
			if err != nil {
				return nil, d.forbid(ctx, "the names of topics", err)
			}
			names = append(names, page...)
			if cursor = next; cursor == "" {
				break
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// read reads the topics. It adds the problems of those that it cannot read.
func (d *doctor) read(ctx context.Context, names []string) (all []found, err error) {
	for some := range slices.Chunk(names, 500) {
		counted, err := d.admin.counted(ctx, some)
		if err != nil {
			return nil, err
		}
		for i, name := range some {
			switch err := counted[i].Err; {
			case err == nil:
				t, _ := d.admin.handle(name) // it has been read
				all = append(all, found{name, t, counted[i], readStats(name, counted[i])})
				d.Now = counted[i].Now
			case errors.Is(err, ErrNotFound) && len(d.options.Topics) > 0:
				d.add(Warning, MissingTopic, Problem{Topic: name, Text: fmt.Sprintf("Topic %q does not exist: look at its name, and at the key prefix.", name)})
			case errors.Is(err, ErrNotFound):
				d.add(Notice, MissingTopic, Problem{Topic: name, Text: fmt.Sprintf("The list of topics has %q, which does not exist: a Publish makes it.", name),
					Delete: tool("topics", "rm", name), Deletes: "the name in the list"})
			case errors.Is(err, ErrForbidden):
				d.refused[err.Error()]++
			case errors.Is(err, ErrLayout):
				d.add(Critical, OtherLayout, Problem{Topic: name,
					Text: fmt.Sprintf("Topic %q cannot be read by this version: %v; use the version that wrote it.", name, err)})
			default:
				d.add(Critical, Unreadable, Problem{Topic: name, Text: fmt.Sprintf("Topic %q cannot be read: %v.", name, err)})
			}
		}
		if d.Topics += len(some); d.options.Progress != nil {
			d.options.Progress(DiagnoseProgress{Topics: d.Topics})
		}
	}
	for lacks, topics := range d.refused {
		d.add(Warning, Forbidden, Problem{Text: fmt.Sprintf("This Redis user may not look at %s: %s.", texts.Many(topics, "topic"), lacks), weight: topics})
	}
	return all, nil
}

// servers looks at each server that has topics.
func (d *doctor) servers(ctx context.Context, all []found) error {
	of := map[string]*operate.Topic{}
	for _, f := range all {
		if master, err := f.topic.Master(ctx); err == nil && of[master] == nil {
			of[master] = f.topic
		}
	}
	if len(of) == 0 {
		t, err := d.admin.handle("any")
		if err != nil {
			return err
		}
		of[servers.OnlyServer] = t
	}
	for master, t := range of {
		s, err := t.Client().Server(ctx, t.Key())
		if err := d.forbid(ctx, "the server", refusal.To("read the server's clock", "time", err)); err != nil {
			if ctx.Err() != nil || !d.admin.client.Cluster() {
				return err
			}
			d.add(Critical, Unreadable, Problem{Text: fmt.Sprintf("Redis at %s does not answer: %v.", master, err)})
		}
		if err == nil {
			if err := d.server(ctx, master, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *doctor) server(ctx context.Context, master string, s servers.Server) error {
	where := "Redis"
	if master != servers.OnlyServer {
		where = "Redis at " + master
	}
	if of := s.ReplicaOf(); of != "" {
		d.replica[master] = true
		d.add(Critical, Replica, Problem{Text: fmt.Sprintf(
			"%s is a replica, where nothing can be published, delivered or scheduled: connect to its master, %s.", where, of)})
	}
	_ = d.forbid(ctx, "the settings of "+where, s.Denied)
	used, _ := strconv.ParseFloat(s.Info["used_memory"], 64)
	most, _ := strconv.ParseFloat(s.Info["maxmemory"], 64)
	if share := used / max(most, 1); most > 0 && share >= 0.8 {
		severity, harm := Warning, Idle
		if share >= 0.95 {
			severity = Critical
		}
		if share >= 1 {
			harm = Delays
		}
		fills, err := d.fills(ctx, master)
		if err := d.forbid(ctx, "how much memory topics take", err); err != nil && ctx.Err() != nil {
			return err // any other leaves out the sentence
		}
		d.add(severity, Memory, Problem{Harm: harm, weight: int(share * 100), Mend: tool("memory"), Text: fmt.Sprintf(
			"%s uses %.0f%% of its maxmemory, and refuses new messages at 100%%: raise maxmemory, or have messages consumed.%s", where, share*100, fills)})
	}
	for _, f := range serverFindings(s) {
		if s.Denied != nil && strings.Contains(f.Detail, "does not say") {
			continue // that is said once
		}
		severity := f.Severity
		if f.Kind == string(WriteFailed) {
			severity = Critical
		}
		d.add(severity, ProblemKind(f.Kind), Problem{Text: fmt.Sprintf("Of %s, %s.", where, f.Detail)})
	}
	return nil
}

// connected finds out which schedulers are not connected. A scheduler of a node that does not
// answer counts as connected.
func (d *doctor) connected(ctx context.Context, all []found) error {
	addressed := make([]wake.Addressed, len(all))
	for i, f := range all {
		addressed[i] = wake.Addressed{Topic: f.topic.Topic, Addresses: []string{f.counts.Holder(), f.counts.Standby()}}
	}
	var err error
	d.gone, err = wake.Gone(ctx, d.admin.client, addressed)
	if err := d.forbid(ctx, "which schedulers are connected", err); err != nil && (ctx.Err() != nil || !d.admin.client.Cluster()) {
		return err
	}
	return nil
}

func (d *doctor) topic(f found) {
	s := f.stats
	r := readiness(s, f.counts)
	scheduled := slices.ContainsFunc([]string{f.counts.Holder(), f.counts.Standby()}, func(address string) bool {
		return address != "" && !d.gone[address]
	})
	switch {
	case !scheduled && !r.Idle:
		d.add(Critical, Unscheduled, Problem{Topic: f.name, Harm: overdue(r.Lag), weight: seconds(r.Lag), Mend: tool("schedule", f.name), Text: fmt.Sprintf(
			"Nobody does the due-time work of topic %q%s: run a subscriber or a scheduler.", f.name, behind(r.Lag))})
	case r.Lag > d.options.Late:
		d.add(Critical, Behind, Problem{Topic: f.name, weight: seconds(r.Lag), Text: fmt.Sprintf(
			"The scheduler of topic %q is %s behind: look at its log, and at the load of its machine and of Redis.", f.name, round(r.Lag))})
	}
	if r.Fault != "" {
		d.add(Critical, SchedulerFault, Problem{Topic: f.name, Harm: overdue(r.Lag), Text: fmt.Sprintf(
			"A scheduler of topic %q failed %s ago: %s", f.name, round(s.Now.Sub(r.FaultAt)), sentence(r.Fault))})
	}
	for _, p := range r.Pauses {
		severity, mend := Warning, []string{"resume"}
		if !p.Until.IsZero() {
			severity = Notice
		}
		if p.Group != "" {
			mend = append(mend, "--group="+p.Group)
		}
		text := p.String()
		if p.Group == "" {
			text = strings.Replace(text, "the topic", fmt.Sprintf("topic %q", f.name), 1)
		} else {
			text = strings.Replace(text, "group", fmt.Sprintf("topic %q, group", f.name), 1)
		}
		d.add(severity, PausedNow, Problem{Topic: f.name, Group: p.Group, Harm: overdue(delayed(s, p.Group)), Text: strings.ToUpper(text[:1]) + text[1:] + ".",
			weight: seconds(s.Now.Sub(p.Since)), Mend: tool(append(mend, f.name)...)})
	}
	d.histories(f)
	if len(s.Groups) == 0 && r.ReadyFor > d.options.Late {
		d.add(Warning, UnreadGroup, Problem{Topic: f.name, weight: s.Waiting, Mend: tool("msg", "ls", f.name),
			Delete: tool("topics", "rm", f.name), Deletes: "the topic with " + texts.Many(s.Messages, "message"), Text: fmt.Sprintf(
				"Topic %q has %s and no group, and the first has been due for %s: start a subscriber, which gets all of them.",
				f.name, texts.Many(s.Waiting, "message"), round(r.ReadyFor))})
	}
}

// delayed returns for how long the first ready message of a group has been due, or of all groups
// if group is "".
func delayed(s Stats, group string) (longest time.Duration) {
	for _, g := range s.Groups {
		if (group == "" || g.Group == group) && !g.OldestDue.IsZero() {
			longest = max(longest, s.Now.Sub(g.OldestDue))
		}
	}
	return longest
}

func (d *doctor) group(f found, g GroupStats) {
	s := f.stats
	waits := s.Now.Sub(g.OldestDue)
	if d.limited(f, g) {
		return
	}
	if g.Ready == 0 || waits <= d.options.Late || s.Stream || s.Pause != nil || g.Pause != nil {
		d.isQuiet(f, g, nil)
		return
	}
	if !g.Subscribed && s.Now.Sub(g.LastSeen) > d.options.Late {
		d.add(Warning, UnreadGroup, Problem{Topic: f.name, Group: g.Group, weight: g.Ready, Mend: tool("groups", "ls", f.name),
			Delete: tool("groups", "rm", f.name, g.Group), Deletes: "the group with " + texts.Many(g.holds(), "message"),
			Text: fmt.Sprintf("Nobody subscribes to group %q of topic %q, and %s: start a subscriber of the group.",
				g.Group, f.name, waiting(g.Ready, waits))})
		return
	}
	late := Problem{Severity: Warning, Kind: Late, Topic: f.name, Group: g.Group, weight: seconds(waits), Mend: tool("workers", f.name),
		Text: fmt.Sprintf("The subscribers of group %q of topic %q do not keep up, and %s.", g.Group, f.name, waiting(g.Ready, waits))}
	if !d.isQuiet(f, g, &late) {
		d.add(late.Severity, late.Kind, late)
	}
}

// limited adds a notice if messages wait because of the group's limit, with the least time in which
// all that are ready can begin. It returns whether they do.
func (d *doctor) limited(f found, g GroupStats) bool {
	if g.LimitedSince.IsZero() || g.Ready == 0 || f.stats.Pause != nil || g.Pause != nil {
		return false
	}
	least := "how long they take depends on their handlers"
	if g.Limit.Rate > 0 {
		least = "they take at least " + leastTime(g.Ready, float64(g.Limit.Rate)).String()
	}
	d.add(Notice, LimitedNow, Problem{Topic: f.name, Group: g.Group, Harm: overdue(f.stats.Now.Sub(g.OldestDue)), weight: g.Ready, Mend: tool("groups", "limit", f.name, g.Group),
		Text: fmt.Sprintf("Group %q of topic %q waits for its limit, %s: %s, and %s.",
			g.Group, f.name, g.Limit, waiting(g.Ready, f.stats.Now.Sub(g.OldestDue)), least)})
	return true
}

// leastTime returns how long a rate takes to bring so many messages, to the second, at least one.
func leastTime(ready int, rate float64) time.Duration {
	s := math.Ceil(float64(ready) / rate)
	return time.Duration(min(s, 100*365*24*60*60)) * time.Second
}

// details adds the problems of which Stats does not tell enough.
func (d *doctor) details(ctx context.Context, details []*operate.Detail) error {
	forbidden, err := operate.ReadDetails(ctx, d.admin.client, details, d.Now.Add(-growing))
	if err == nil {
		err = d.forbid(ctx, "dead letters and suspects", forbidden)
	}
	for _, g := range details {
		if g.RecentDead > 0 {
			d.add(Warning, DeadLetters, Problem{Topic: g.Topic.Name, Group: g.Group, weight: g.RecentDead,
				Mend: tool("dead", "reasons", "--group="+g.Group, g.Topic.Name),
				Text: fmt.Sprintf("Group %q of topic %q got %s in the last hour.", g.Group, g.Topic.Name, texts.Many(g.RecentDead, "dead letter"))})
		}
		if g.Expiries >= 2 { // one may be of a process that was stopped
			d.add(Warning, Suspect, Problem{Topic: g.Topic.Name, Group: g.Group, MessageID: g.Suspect, weight: g.Expiries,
				Mend: tool("msg", "kill", "--group="+g.Group, g.Topic.Name, g.Suspect),
				Text: fmt.Sprintf("Message %s of group %q of topic %q has lost its lease %d times in a row, and may end its processes.",
					g.Suspect, g.Group, g.Topic.Name, g.Expiries)})
		}
	}
	return err
}

// check adds what Check finds in the data of each topic.
func (d *doctor) check(ctx context.Context, all []found) error {
	refused := map[string]int{}
	for i, f := range all {
		if d.options.Progress != nil {
			d.options.Progress(DiagnoseProgress{Topics: d.Topics, Checked: i, Topic: f.name})
		}
		report, err := d.admin.Check(ctx, f.name)
		switch {
		case err == nil, errors.Is(err, ErrNotFound):
		case errors.Is(err, ErrForbidden):
			refused[err.Error()]++
		case errors.Is(err, ErrChanging):
			d.add(Notice, Unreadable, Problem{Topic: f.name, Text: fmt.Sprintf("Topic %q cannot be checked: %v.", f.name, err)})
		default:
			return err
		}
		for _, v := range report.Violations() {
			d.add(Violation, ProblemKind(v.Kind), Problem{Topic: f.name, Group: v.Group, MessageID: v.MessageID, Mend: tool("repair", f.name),
				Text: fmt.Sprintf("In the data of topic %q, %s.", f.name, v.Detail)})
		}
	}
	for lacks, topics := range refused {
		d.add(Warning, Forbidden, Problem{Text: fmt.Sprintf("This Redis user may not check %s: %s.", texts.Many(topics, "topic"), lacks)})
	}
	return nil
}

// tool returns the arguments of a command. Flags come first. If a name looks like a flag, "--"
// comes before the names.
func tool(args ...string) []string {
	flags := 0
	for flags < len(args) && !strings.HasPrefix(args[flags], "-") {
		flags++
	}
	names := flags
	for names < len(args) && strings.HasPrefix(args[names], "--group=") {
		names++
	}
	if slices.ContainsFunc(args[names:], func(name string) bool { return strings.HasPrefix(name, "-") }) {
		return slices.Insert(args, names, "--")
	}
	return args
}

func waiting(ready int, since time.Duration) string {
	if ready == 1 {
		return fmt.Sprintf("a message has been ready for %s", round(since))
	}
	return fmt.Sprintf("%d messages are ready, the first for %s", ready, round(since))
}

func behind(lag time.Duration) string {
	if lag < time.Second {
		return ""
	}
	return fmt.Sprintf(", which is %s behind", round(lag))
}

func round(d time.Duration) time.Duration { return d.Round(time.Second) }

func seconds(d time.Duration) int { return int(d / time.Second) }

// sentence ends a text with a full stop.
func sentence(text string) string { return strings.TrimRight(strings.TrimSpace(text), ".") + "." }
