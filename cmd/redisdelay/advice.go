package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// unknownCommand refuses arguments of a command that only has commands below it, with names that
// are near.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	said := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		said += "\n\nDid you mean this?\n\t" + strings.Join(near, "\n\t")
	}
	return errors.New(said)
}

// flagError adds to an error about a flag how a name that begins with a dash is given. It adds
// nothing if the command would not take so many names: then the flag is a mistake.
func (a *app) flagError(cmd *cobra.Command, err error) error {
	if !strings.HasPrefix(err.Error(), "unknown ") {
		return err
	}
	words := len(strings.Fields(cmd.CommandPath())) - 1
	if !strings.Contains(cmd.UseLine(), "TOPIC") || len(a.args) < words {
		return err
	}
	var flags, names []string
	given := a.args[words:]
	for i := 0; i < len(given); i++ {
		if given[i] == "--" {
			names = append(names, given[i+1:]...)
			break
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(given[i], "-"), "=")
		flag := cmd.Flags().Lookup(name)
		if !strings.HasPrefix(given[i], "--") || flag == nil {
			names = append(names, given[i])
			continue
		}
		flags = append(flags, given[i])
		if !hasValue && flag.NoOptDefVal == "" && i+1 < len(given) {
			i++
			flags = append(flags, given[i])
		}
	}
	if cmd.Args != nil && cmd.Args(cmd, names) != nil {
		return err
	}
	args := slices.Concat(a.args[:words], flags, []string{"--"}, names)
	return fmt.Errorf("%w\na name that begins with a dash comes after --: %s", err, commandLine(args...))
}

// refuseEmpty refuses flags of a command that are given and empty, such as by a variable of a
// script that is not set. Settings are not among them: the empty text is that of no setting.
func (a *app) refuseEmpty(cmd *cobra.Command) error {
	var errs []error
	for _, name := range []string{"group", "to", "in", "at", "by", "since", "until", "from", "export", "uuid", "delay-id", "state", "payload", "topic", "cursor", "reason", "why", "rate", "burst", "at-once", "keep", "id",
		"file", "listen", "key-prefix", "as"} {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed || !hasEmpty(f) || a.settings.find(name).flag == f && a.settings.find(name).given != byDefault {
			continue
		}
		if f.Annotations[cobra.BashCompOneRequiredFlag] != nil {
			errs = append(errs, refuse("--%s is empty; it is required", name))
			continue
		}
		errs = append(errs, refuse("--%s is empty; give it a value, or leave it out", name))
	}
	return errors.Join(errs...)
}

// hasEmpty returns whether the value of a flag is empty, or one of its values.
func hasEmpty(f *pflag.Flag) bool {
	if f.Value.Type() == "stringArray" {
		return slices.Contains(f.Value.(pflag.SliceValue).GetSlice(), "")
	}
	return f.Value.String() == ""
}

// advised adds to an error what to do about it.
func (a *app) advised(err error) error {
	if err == nil || a.connection == nil {
		return err
	}
	text := err.Error()
	name := a.redis.name + "-password"
	dialing := new(net.OpError)
	switch {
	case errors.As(err, &dialing) && dialing.Op == "dial":
	case errors.Is(err, os.ErrDeadlineExceeded) && a.running != a.relay: // a relay speaks with others, too
		return fmt.Errorf("%w\nRedis did not answer within %v: it may be busy, or far; --%s-timeout says how long it may take", err, *a.redis.timeout, a.redis.name)
	case strings.Contains(text, "NOAUTH"):
		return fmt.Errorf("%w\nRedis wants a password: set %s, or --%s-file", err, variable(name), name)
	case strings.Contains(text, "WRONGPASS"):
		return fmt.Errorf("%w\nRedis refuses the password of %s or --%s-file, or the user of --%s-username", err, variable(name), name, a.redis.name)
	}
	return err
}

// near adds to an error about a topic that does not exist the name of one that does.
func (a *app) near(ctx context.Context, args []string, err error) error {
	if !errors.Is(err, admin.ErrNotFound) || len(args) == 0 || ctx.Err() != nil {
		return err
	}
	if found := a.nearTopic(ctx, args[0]); found != "" {
		return fmt.Errorf("%w\nthere is a topic %q: did you mean that?", err, found)
	}
	return err
}

// nearTopic returns the topic whose name is next to that of one that does not exist. It returns ""
// if there is none, or if the topic exists.
func (a *app) nearTopic(ctx context.Context, missing string) string {
	looking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	best, found := 3, "" // a distance of two at most
	exists := false
	failed := a.topics(looking, nil, func(_ *admin.Admin, page []string) error {
		for _, name := range page {
			whole, _, ok := partition.Parse(name)
			if !ok {
				whole = name
			}
			exists = exists || whole == missing || name == missing
			if d := distance(missing, whole, best); d < best && d < len([]rune(missing)) {
				best, found = d, whole
			}
		}
		return nil
	})
	if failed != nil || exists {
		return ""
	}
	return found
}

// distance is how many characters differ between two names, by Levenshtein: added, left out or
// replaced. It is most or more if the lengths alone differ by that.
func distance(from, to string, most int) int {
	a, b := []rune(from), []rune(to)
	if d := len(a) - len(b); d >= most || -d >= most {
		return most
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		before := row[0]
		row[0] = i + 1
		for j := range b {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// where says where a command looked that found nothing.
func (a *app) where() string {
	options, err := a.redis.options()
	if err != nil {
		return ""
	}
	text := fmt.Sprintf(" It looked at key prefix %q of %s", *a.keyPrefix, strings.Join(options.Addrs, ", "))
	if options.DB != 0 {
		text += fmt.Sprintf(", database %d", options.DB)
	}
	return text + "."
}
