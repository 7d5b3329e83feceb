package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// examination is what doctor looks at, and shows.
type examination struct {
	topics, whole, kinds []string // whole and kinds are shown one by one
	deep                 bool
	late                 time.Duration
	changesLate          bool // late is not the default
}

func (a *app) doctorCommand() *cobra.Command {
	var x examination
	c := &cobra.Command{Use: "doctor [TOPIC...]", Short: "every problem in one sentence, with the command that mends it, worst first",
		Long: `Says every problem in one sentence, with the command that mends it, worst first: dead and lost messages, then late ones,
then what does no harm yet. Problems of one kind are one line, with the worst of them; --kind and --topic show each. No
such command deletes anything; if something could be deleted, that comes last, with what it would delete. It looks at the
server and at the given topics, by default at all. What is ignored (see "redisdelay ignore --help") comes at the end. The
exit code is 1 if there is a problem that is more than a notice, and is not ignored.`,
		ValidArgsFunction: a.completeTopic,
		Example:           "  redisdelay doctor\n  redisdelay doctor --kind dead-letters\n  redisdelay doctor orders --deep",
		RunE: a.runs(func(ctx context.Context, args []string) error {
			x.topics, x.changesLate = args, a.given("late")
			return a.doctor(ctx, x)
		})}
	c.Flags().BoolVar(&x.deep, "deep", false, "also read all data of the topics, as check does")
	c.Flags().DurationVar(&x.late, "late", time.Minute, "a group is late if its next message has been ready for so long")
	c.Flags().StringArrayVar(&x.kinds, "kind", nil, "show each problem of this `kind`, such as dead-letters; may be repeated")
	c.Flags().StringArrayVar(&x.whole, "topic", nil, "look at this `topic` only, and show each of its problems; may be repeated")
	_ = c.RegisterFlagCompletionFunc("kind", completeKind)
	_ = c.RegisterFlagCompletionFunc("topic", a.completeTopic)
	a.jsonFlag(c.Flags())
	return c
}

// completeKind completes the kind of a problem.
func completeKind(_ *cobra.Command, _ []string, begin string) (names []string, _ cobra.ShellCompDirective) {
	for _, kind := range admin.ProblemKinds() {
		if strings.HasPrefix(kind.Flag(), begin) {
			names = append(names, kind.Flag())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// lines returns the problems as doctor shows them: folded, or one by one.
func (x examination) lines(problems []admin.Problem) (lines []admin.Folded, err error) {
	var kinds []admin.ProblemKind
	for _, text := range x.kinds {
		kind, err := admin.KindOf(text)
		if err != nil {
			return nil, refuse("--kind: %w", err)
		}
		kinds = append(kinds, kind)
	}
	if len(kinds) == 0 && len(x.whole) == 0 {
		lines = admin.FoldProblems(problems)
		for i := range lines {
			lines[i].Unfold = x.unfolding(lines[i].Unfold)
		}
		return lines, nil
	}
	for _, p := range problems {
		if len(kinds) == 0 || slices.Contains(kinds, p.Kind) {
			lines = append(lines, admin.FoldProblems([]admin.Problem{p})...)
		}
	}
	return lines, nil
}

// unfolding returns the arguments that show the problems of a line as this doctor found them.
func (x examination) unfolding(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	if x.changesLate {
		args = slices.Insert(args, 1, fmt.Sprint("--late=", x.late))
	}
	if x.deep && !slices.Contains(args, "--deep") {
		args = slices.Insert(args, 1, "--deep")
	}
	if slices.ContainsFunc(x.topics, func(name string) bool { return strings.HasPrefix(name, "-") }) {
		args = append(args, "--")
	}
	return append(args, x.topics...)
}

func (a *app) doctor(ctx context.Context, x examination) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	if _, err := x.lines(nil); err != nil {
		return err
	}
	options := admin.DiagnoseOptions{Topics: slices.Concat(x.topics, x.whole), Deep: x.deep, Late: x.late, Progress: func(p admin.DiagnoseProgress) {
		if p.Topic != "" {
			a.out.progress("Checking topic %q; %s done", p.Topic, texts.Many(p.Checked, "topic"))
			return
		}
		a.out.progress("Looked at %s", texts.Many(p.Topics, "topic"))
	}}
	diagnosis, err := operator.Diagnose(ctx, options)
	if err != nil {
		return err
	}
	a.out.endProgress()
	lines, err := x.lines(diagnosis.Problems)
	if err != nil {
		return err
	}
	wrong, ignored := false, 0
	for _, p := range lines {
		if p.Ignored != nil {
			ignored += p.Count
		} else {
			wrong = wrong || p.Severity != admin.Notice
		}
		if a.out.json {
			a.out.object(p)
			continue
		}
		a.sayProblem(ctx, p)
	}
	if wrong {
		return errSaid
	}
	where := ""
	if diagnosis.Topics == 0 {
		where = a.where()
	}
	besides := ""
	if ignored > 0 {
		besides = fmt.Sprintf(", but for %s that somebody ignores", texts.Many(ignored, "problem"))
	}
	if len(x.kinds) > 0 {
		besides += ", as far as --kind says"
	}
	a.out.note("Nothing is wrong with %s%s.%s", texts.Many(diagnosis.Topics, "topic"), besides, where)
	return nil
}

// sayProblem prints a line about problems, and the commands that mend and show them.
func (a *app) sayProblem(ctx context.Context, p admin.Folded) {
	if p.Ignored != nil {
		a.out.marked(faint, "ignored", p.Text)
		a.out.marked(faint, "", strings.ToUpper(p.Ignored.String()[:1])+p.Ignored.String()[1:]+".")
		a.out.marked(faint, "", commandLine(ignoring("unignore", *p.Ignored)...))
		return
	}
	a.out.marked(problemStyle(p.Severity), string(p.Severity), p.Text)
	if p.Kind == admin.MissingTopic && p.Count == 1 {
		if found := a.nearTopic(ctx, p.Topic); found != "" {
			a.out.marked(faint, "", fmt.Sprintf("There is a topic %q: did you mean that?", found))
		}
	}
	if len(p.Mend) > 0 {
		a.out.marked(faint, "", commandLine(p.Mend...))
	}
	if len(p.Delete) > 0 && p.Count == 1 {
		a.out.marked(faint, "", fmt.Sprintf("Only if nobody needs it, this deletes %s: %s", p.Deletes, commandLine(p.Delete...)))
	}
	if len(p.Unfold) > 0 {
		a.out.marked(faint, "", fmt.Sprintf("All %s: %s", texts.Number(p.Count), commandLine(p.Unfold...)))
	}
}

func problemStyle(s admin.Severity) style {
	if s == admin.Critical || s == admin.Violation {
		return alarming
	}
	return doubtful
}
