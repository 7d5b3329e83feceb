package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/partitions"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Harm is what a problem does to messages now.
type Harm string

// The harms, the worst first.
const (
	Loses  Harm = "lost" // messages are dead or lost
	Delays Harm = "late" // messages are due, and do not come
	Idle   Harm = "idle" // no message suffers yet
)

var harms = []Harm{Loses, Delays, Idle}

// aspect is what is known about all problems of a kind.
type aspect struct {
	harm Harm // of a problem that does not say its own

	// said says in a sentence that many have the problem; %s is how many of them. unit is one of
	// them: a topic, or any other word for one problem.
	said, unit string
}

// aspects has the kinds of Diagnose. Those of Check's findings are not among them: data is lost.
var aspects = map[ProblemKind]aspect{
	Unscheduled:       {Idle, "Nobody does the due-time work of %s", "topic"},
	SchedulerFault:    {Idle, "Schedulers of %s fail", "topic"},
	Behind:            {Delays, "The schedulers of %s are behind", "topic"},
	PausedNow:         {Idle, "There are %s of topics and groups", "pause"},
	UnreadGroup:       {Delays, "There are %s without a subscriber", "group"},
	Hung:              {Delays, "There are %s that settle nothing of what they have in hand", "group"},
	Late:              {Delays, "There are %s whose subscribers do not keep up", "group"},
	LimitedNow:        {Idle, "There are %s that wait for their limits", "group"},
	DeadLetters:       {Loses, "There are %s that got dead letters in the last hour", "group"},
	Suspect:           {Delays, "There are %s that may end their processes", "message"},
	StoppedSchedule:   {Delays, "Recurring schedules of %s are not published", "topic"},
	PausedSchedule:    {Idle, "Recurring schedules of %s are paused", "topic"},
	MissedOccurrences: {Loses, "Occurrences of recurring schedules of %s were missed", "topic"},
	LostHistory:       {Idle, "There are %s with gaps", "history"},
	Replica:           {Delays, "There are %s that are replicas", "server"},
	Memory:            {Idle, "There are %s that are almost full", "server"},
	Eviction:          {Idle, "There are %s that may evict keys", "server"},
	Persistence:       {Idle, "There are %s that may lose writes", "server"},
	WriteFailed:       {Loses, "There are %s that failed to write to their disks", "server"},
	Clock:             {Idle, "There are %s with a clock", "problem"},
	Forbidden:         {Idle, "This Redis user lacks rights: %s", "refusal"},
	OtherLayout:       {Delays, "Another version wrote %s", "topic"},
	Unreadable:        {Delays, "Nobody can read %s", "topic"},
	MissingTopic:      {Idle, "There is no trace of %s", "topic"},
}

// harmOf returns the harm of a problem of a kind and severity.
func harmOf(kind ProblemKind, severity Severity) Harm {
	if severity == Violation {
		return Loses
	}
	return cmp.Or(aspects[kind].harm, Idle)
}

// compareProblems orders problems: those that are ignored last, and notices before them. Then the
// worst harm comes first.
func compareProblems(a, b Problem) int {
	last := func(p Problem) int {
		switch {
		case p.Ignored != nil:
			return 2
		case p.Severity == Notice:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(a), last(b)),
		cmp.Compare(rank(harms, a.Harm), rank(harms, b.Harm)),
		cmp.Compare(rank(severities, a.Severity), rank(severities, b.Severity)),
		cmp.Compare(rank(problemKinds, a.Kind), rank(problemKinds, b.Kind)), cmp.Compare(b.weight, a.weight),
		strings.Compare(a.Topic, b.Topic), strings.Compare(a.Group, b.Group))
}

// SortProblems puts problems into the order of Diagnose.
func SortProblems(problems []Problem) { slices.SortStableFunc(problems, compareProblems) }

// Folded is all problems of one kind and severity. It has the fields of the worst of them, but its
// Text is about all.
type Folded struct {
	Problem

	Count  int `json:"count"`  // how many problems these are
	Topics int `json:"topics"` // how many plain topics they are about; 0 if they are about servers

	// Unfold are the arguments with which the program redisdelay shows each of them. It is empty if
	// there is only one.
	Unfold []string `json:"unfold,omitempty"`
}

// FoldProblems puts problems of one kind and severity together, in the order of Diagnose. Problems
// that are ignored are folded for themselves.
func FoldProblems(problems []Problem) []Folded {
	problems = slices.Clone(problems)
	SortProblems(problems)
	type line struct {
		kind     ProblemKind
		severity Severity
		ignored  Ignored
	}
	lines, folded := map[line]int{}, [][]Problem{}
	for _, p := range problems {
		of := line{kind: p.Kind, severity: p.Severity}
		if p.Ignored != nil {
			of.ignored = *p.Ignored
		}
		at, known := lines[of]
		if !known {
			at, lines[of] = len(folded), len(folded)
			folded = append(folded, nil)
		}
		folded[at] = append(folded[at], p)
	}
	all := []Folded{}
	for _, some := range folded {
		all = append(all, foldedOf(some))
	}
	return all
}

// foldedOf returns the line of some problems of one kind and severity, the worst first.
func foldedOf(some []Problem) Folded {
	f := Folded{Problem: some[0], Count: len(some)}
	topics, harmed := map[string]bool{}, 0
	for _, p := range some {
		if p.Topic != "" {
			topics[p.Topic] = true
		}
		if p.Harm == f.Harm {
			harmed++
		}
	}
	if f.Topics = len(topics); f.Count == 1 {
		return f
	}
	f.Unfold = []string{"doctor", "--kind=" + f.Kind.Flag()}
	known, ok := aspects[f.Kind]
	if !ok {
		f.Unfold = slices.Insert(f.Unfold, 1, "--deep")
		known = aspect{said: fmt.Sprintf("In the data of %s, there are %%s of kind %q", texts.Many(f.Topics, "topic"), f.Kind), unit: "violation"}
	}
	n := f.Count
	if known.unit == "topic" && f.Topics > 0 {
		n = f.Topics
	}
	said := fmt.Sprintf(known.said, texts.Many(n, known.unit))
	if harmed < f.Count {
		said += map[Harm]string{Loses: fmt.Sprintf(", and lose messages %d times", harmed), Delays: fmt.Sprintf(", and %s late", texts.Many(harmed, "time"))}[f.Harm]
	}
	f.Text = said + ". The worst: " + f.Text
	return f
}

// Flag returns the kind as one word, for a flag of a program: "dead-letters".
func (k ProblemKind) Flag() string { return strings.ReplaceAll(string(k), " ", "-") }

// KindOf returns the kind that a text names, as one word or as it is. It returns an error that
// wraps ErrInvalidArgument and lists all kinds if there is none.
func KindOf(text string) (ProblemKind, error) {
	for _, kind := range ProblemKinds() {
		if text == string(kind) || text == kind.Flag() {
			return kind, nil
		}
	}
	var all []string
	for _, kind := range ProblemKinds() {
		all = append(all, kind.Flag())
	}
	return "", fmt.Errorf("%w: %.64q is no kind of problem; want one of %s", ErrInvalidArgument, text, strings.Join(all, ", "))
}

// isAbout tells whether a problem is about a topic, or about a partition of it; "" is any.
func (p Problem) isAbout(topic string) bool {
	whole, _, parted := partitions.Parse(p.Topic)
	return topic == "" || p.Topic == topic || parted && whole == topic
}

// overdue returns the harm of something that delays messages if they are late.
func overdue(late time.Duration) Harm {
	if late >= time.Second {
		return Delays
	}
	return Idle
}
