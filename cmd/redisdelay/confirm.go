package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// consent are the flags of commands that take something away.
type consent struct {
	yes, dryRun bool
}

func (a *app) consentFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&a.consent.yes, "yes", false, "do not ask")
	flags.BoolVar(&a.consent.dryRun, "dry-run", false, "say what would be done, and do nothing")
}

// act is something that a command does to messages, and after it is done what came of it.
type act struct {
	Action   string `json:"action"` // as in the audit log
	verb     string // Action as people say it; "": the same
	Topic    string `json:"topic"`
	Group    string `json:"group,omitempty"`
	Schedule string `json:"schedule,omitempty"`
	To       string `json:"to,omitempty"`
	ID       string `json:"id,omitempty"`
	Worker   string `json:"worker,omitempty"` // has the messages
	Count    int    `json:"count"`
	Unit     string `json:"unit"` // such as "dead letter"

	// Partitions is how many partitions of the topic it is about. 0: the topic is a plain one.
	Partitions int `json:"partitions,omitempty"`

	DryRun bool `json:"dry_run,omitempty"`
}

// actOf returns an act of an operation.
func (a *app) actOf(ctx context.Context, operator *admin.Admin, o admin.Operation, topic string) act {
	w := act{Action: o.Name, verb: o.Verb, Unit: o.Unit, Topic: topic}
	if o.Partitions {
		return a.partitioned(ctx, operator, w)
	}
	return w
}

// effectOf says what the operation of a name does.
func effectOf(name string) string {
	o, _ := admin.OperationNamed(name)
	return o.Effect
}

// removal returns an act of the operation of a name that removes all of something.
func (a *app) removal(ctx context.Context, operator *admin.Admin, name, topic string) act {
	o, _ := admin.OperationNamed(name)
	return a.actOf(ctx, operator, o, topic)
}

// String returns the act as a phrase, such as: purge 5 dead letters of group "a" of topic "b".
func (w act) String() string {
	what := texts.Many(w.Count, w.Unit)
	if w.ID != "" {
		what = w.Unit + " " + w.ID
	}
	of := fmt.Sprintf(" of topic %q%s", w.Topic, inPartitions(w.Partitions))
	if w.Action == "import" {
		of = fmt.Sprintf(" into topic %q%s", w.Topic, inPartitions(w.Partitions))
	}
	if w.Group != "" {
		of = fmt.Sprintf(" of group %q", w.Group) + of
	}
	if w.Schedule != "" {
		of = fmt.Sprintf(" of schedule %q", w.Schedule) + of
	}
	if w.Worker != "" {
		of = fmt.Sprintf(" of worker %q", w.Worker) + of
	}
	if w.To != "" {
		of += fmt.Sprintf(" to topic %q", w.To)
	}
	return cmp.Or(w.verb, w.Action) + " " + what + of
}

// inPartitions says that a topic has partitions.
func inPartitions(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s)", texts.Many(n, "partition"))
}

// partitions returns how many partitions a topic has; 0 for a plain one, or if they cannot be read.
func (a *app) partitions(ctx context.Context, operator *admin.Admin, topic string) int {
	plain, err := operator.Plain(ctx, topic)
	if err != nil || len(plain) == 1 && plain[0] == topic {
		return 0
	}
	return len(plain)
}

// partitioned returns the act with the number of partitions of its topic.
func (a *app) partitioned(ctx context.Context, operator *admin.Admin, w act) act {
	w.Partitions = a.partitions(ctx, operator, w.Topic)
	return w
}

// agreed returns whether an act is to be done. It prints a dry run, and asks on a terminal. The
// error is a refusal where nobody can be asked, or errSaid after a no.
func (a *app) agreed(ctx context.Context, w act) (bool, error) { return a.agreedTo(ctx, w, w.String()) }

// agreedTo is agreed with another phrase for the act.
func (a *app) agreedTo(ctx context.Context, w act, phrase string) (bool, error) {
	switch {
	case a.consent.dryRun:
		w.DryRun = true
		a.out.say(w, "This would %s.", phrase)
		return false, nil
	case a.consent.yes:
		return true, nil
	case !isTerminal(a.sys.stdin):
		return false, refuse("this would %s; there is no terminal to ask on, so say --yes, or --dry-run to see only", phrase)
	}
	a.out.endProgress()
	_, _ = fmt.Fprintf(a.sys.stderr, "%s. Go on? [y/N] ", clean("This will "+phrase))
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.sys.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(a.sys.stderr)
		return false, fmt.Errorf("nothing was changed: %w", ctx.Err())
	case said := <-answer:
		if said == "y" || said == "yes" {
			return true, nil
		}
		a.out.note("Nothing was changed.")
		return false, errSaid
	}
}

// done prints what came of an act.
func (a *app) done(w act) {
	a.out.endProgress()
	a.out.say(w, "Done: %s.", w)
}
