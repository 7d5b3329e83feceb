package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// whoami returns user@host.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// who returns who uses the tool, for the audit log and for pauses.
func (a *app) who() string { return cmp.Or(*a.as, whoami()) }

// recordFor is how long the audit log may take. The act itself is done by then.
const recordFor = 5 * time.Second

// record notes an act in the audit log, and its error. The act counts, so a log that cannot be
// written is only noted.
func (a *app) record(ctx context.Context, operator *admin.Admin, done admin.Act, err error) {
	if err != nil {
		done.Error = err.Error()
	}
	if failed := a.write(ctx, operator, done); failed != nil && err == nil && !a.unrecorded {
		a.unrecorded = true
		a.out.note("This is not in the audit log: %s", failed)
	}
}

// begins notes in the audit log that an act on many messages begins, so that it is known even if
// the program is killed. record says it if the log cannot be written.
func (a *app) begins(ctx context.Context, operator *admin.Admin, w act, chosen string) {
	begun := admin.Act{Action: w.Action, Topic: w.Topic, Group: w.Group, Detail: "begins with " + texts.Many(w.Count, w.Unit)}
	if w.To != "" {
		begun.Detail += fmt.Sprintf(", to %q", w.To)
	}
	if chosen != "" {
		begun.Detail += ", " + chosen
	}
	_ = a.write(ctx, operator, begun)
}

func (a *app) write(ctx context.Context, operator *admin.Admin, done admin.Act) error {
	done.By = a.who()
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordFor)
	defer cancel()
	return operator.Record(recording, done)
}

// noted returns an act for the audit log: what was done to how many.
func (w act) noted() admin.Act {
	noted := admin.Act{Action: w.Action, Topic: w.Topic, Group: w.Group, MessageID: w.ID, Schedule: w.Schedule}
	if w.ID == "" {
		noted.Detail = "done: " + texts.Many(w.Count, w.Unit)
	}
	if w.Worker != "" {
		noted.Detail += fmt.Sprintf(" of worker %q", w.Worker)
	}
	return noted
}

func (a *app) auditCommand() *cobra.Command {
	var by, topic string
	limit := 0
	c := &cobra.Command{Use: "audit [flags]", Short: "what operators did, by the tool and on the web page, newest first", Args: cobra.NoArgs,
		Long: `Prints what operators did by this tool and on the web page, newest first. The log is in Redis, and has about the last
10,000 acts. Each command that changes something adds to it: by whom, from --as or else user@host, what, and how many.`,
		DisableFlagsInUseLine: true,
		Example:               "  redisdelay audit --topic orders --limit 10\n  redisdelay audit --json --limit 0",
		RunE:                  a.runs(func(ctx context.Context, _ []string) error { return a.audit(ctx, by, topic, limit) })}
	c.Flags().IntVar(&limit, "limit", 50, "print at most so many; 0: all")
	c.Flags().StringVar(&by, "by", "", "only what this `person` did")
	c.Flags().StringVar(&topic, "topic", "", "only what was done to this `topic`")
	_ = c.RegisterFlagCompletionFunc("topic", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.completeTopic(cmd, nil, prefix)
	})
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) audit(ctx context.Context, by, topic string, limit int) error {
	if limit < 0 {
		return refuse("--limit is %d; it must be 0 or more", limit)
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	t := a.out.table("AT", "BY", "DID", "TOPIC", "GROUP", "TO", "DETAIL")
	shown, more, looked := 0, false, 0
	for cursor := ""; !more; {
		acts, next, err := operator.Acts(ctx, cursor, 1000)
		if err != nil {
			return err
		}
		for _, did := range acts {
			looked++
			if by != "" && did.By != by || topic != "" && did.Topic != strings.ToValidUTF8(topic, "\ufffd") { // as Record writes it
				continue
			}
			if more = limit > 0 && shown == limit; more {
				break
			}
			shown++
			detail := did.Detail
			if did.Error != "" {
				detail = "failed: " + did.Error
			}
			t.row(did, did.At, did.By, did.Action, did.Topic, did.Group, cmp.Or(did.MessageID, did.Schedule), alarming.in(cut(detail, 100), did.Error != ""))
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	none := "Nothing is in the audit log."
	if looked > 0 {
		none = fmt.Sprintf("Nothing of that is among the %s in the audit log.", texts.Many(looked, "act"))
	}
	err = t.flush(none+a.where(), nil)
	if more {
		a.out.note("There are more; --limit says how many are shown.")
	}
	return err
}
