package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

func (a *app) doctorCommand() *cobra.Command {
	deep, late := false, time.Duration(0)
	c := &cobra.Command{Use: "doctor [TOPIC...]", Short: "every problem in one sentence, with the command that mends it, worst first",
		Long: `Says every problem in one sentence, with the command that mends it, worst first. No such command deletes anything; if
something could be deleted, that comes last, with what it would delete. It looks at the server and at the given topics,
by default at all. The exit code is 1 if there is a problem that is
more than a notice.`,
		ValidArgsFunction: a.completeTopic,
		Example:           "  redisdelay doctor\n  redisdelay doctor orders --deep",
		RunE:              a.runs(func(ctx context.Context, args []string) error { return a.doctor(ctx, args, deep, late) })}
	c.Flags().BoolVar(&deep, "deep", false, "also read all data of the topics, as check does")
	c.Flags().DurationVar(&late, "late", time.Minute, "a group is late if its next message has been ready for so long")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) doctor(ctx context.Context, topics []string, deep bool, late time.Duration) error {
	operator, err := a.admin()
	if err != nil {
		return err
	}
	diagnosis, err := operator.Diagnose(ctx, admin.DiagnoseOptions{Topics: topics, Deep: deep, Late: late, Progress: func(p admin.DiagnoseProgress) {
		if p.Topic != "" {
			a.out.progress("Checking topic %q; %s done", p.Topic, texts.Many(p.Checked, "topic"))
			return
		}
		a.out.progress("Looked at %s", texts.Many(p.Topics, "topic"))
	}})
	if err != nil {
		return err
	}
	a.out.endProgress()
	wrong := false
	for _, p := range diagnosis.Problems {
		wrong = wrong || p.Severity != admin.Notice
		if a.out.json {
			a.out.object(p)
			continue
		}
		a.out.marked(problemStyle(p.Severity), string(p.Severity), p.Text)
		if p.Kind == admin.MissingTopic {
			if found := a.nearTopic(ctx, p.Topic); found != "" {
				a.out.marked(faint, "", fmt.Sprintf("There is a topic %q: did you mean that?", found))
			}
		}
		if len(p.Mend) > 0 {
			a.out.marked(faint, "", commandLine(p.Mend...))
		}
		if len(p.Delete) > 0 {
			a.out.marked(faint, "", fmt.Sprintf("Only if nobody needs it, this deletes %s: %s", p.Deletes, commandLine(p.Delete...)))
		}
	}
	if wrong {
		return errSaid
	}
	where := ""
	if diagnosis.Topics == 0 {
		where = a.where()
	}
	a.out.note("Nothing is wrong with %s.%s", texts.Many(diagnosis.Topics, "topic"), where)
	return nil
}

func problemStyle(s admin.Severity) style {
	if s == admin.Critical || s == admin.Violation {
		return alarming
	}
	return doubtful
}
