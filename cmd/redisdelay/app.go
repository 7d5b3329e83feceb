package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// system is what the program has of its surroundings.
type system struct {
	environment    []string // NAME=value
	stdin          io.Reader
	stdout, stderr io.Writer
	setLogger      func(*slog.Logger) // makes a logger that of the process; nil: that stays
	completes      time.Duration      // limits what the shell waits for a completion; 0: two seconds
}

const (
	exitFailed  = 1 // something is wrong
	exitRefused = 2 // the program is used wrongly
)

var (
	// errRefused is wrapped by errors about settings and arguments.
	errRefused = errors.New("refused")

	// errSaid means that the output says already what is wrong.
	errSaid = errors.New("see above")
)

// refuse returns an error about settings or arguments, which wraps errRefused.
func refuse(format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...)}
}

type refusal struct{ error }

func (r *refusal) Unwrap() []error { return []error{errRefused, r.error} }

// app is one run of the program: its commands, and what they share.
type app struct {
	sys      system
	settings *settings
	*connection
	out    *output
	logger *slog.Logger

	root, relay, ui *cobra.Command
	running         *cobra.Command // nil until a command runs
	relaying        *relaySettings
	args            []string // of the command line
	json            bool
	utc             bool
	consent         consent
	client          redis.UniversalClient // nil until the first use
	began           bool                  // the arguments are read, and a command runs
	unrecorded      bool                  // it was said that the audit log does not have an act
	replica         sync.Once             // says that the server is one
}

func newApp(sys system) *app {
	a := &app{sys: sys, root: &cobra.Command{
		Use:   "redisdelay COMMAND",
		Short: "what waits in Redis, what is wrong with it, and what to do",
		Long: `What waits in Redis, what is wrong with it, and what to do.

Begin with "redisdelay doctor". Exit codes: 0 fine, 1 something is wrong, 2 used wrongly.`,
		DisableFlagsInUseLine: true,
		SilenceErrors:         true,
		SilenceUsage:          true,
	}}
	a.settings = newSettings(sys.environment, a.root.PersistentFlags())
	a.connection = declareConnection(a.settings)
	a.root.PersistentFlags().BoolVar(&a.utc, "utc", false, "read and show times in UTC; by default in the zone of this machine")
	a.root.RunE = a.incomplete
	a.root.SetOut(sys.stdout)
	a.root.SetErr(sys.stderr)
	a.root.SetHelpFunc(a.help)
	a.root.SetUsageFunc(func(*cobra.Command) error { return nil })
	a.root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	a.root.AddCommand(
		a.doctorCommand(), a.ignoreCommand(), a.unignoreCommand(), a.workersCommand(), a.memoryCommand(),
		a.topCommand(), a.topicsCommand(), a.groupsCommand(), a.upcomingCommand(), a.findCommand(),
		a.deadCommand(), a.msgCommand(), a.pauseCommand(), a.resumeCommand(), a.publishCommand(), a.tailCommand(), a.historyCommand(),
		a.checkCommand(), a.repairCommand(), a.auditCommand(), a.relayCommand(), a.metricsCommand(), a.uiCommand(), a.scheduleCommand(),
		a.schedulesCommand(), a.periodicCommand(), a.partitionsCommand(), a.versionCommand(), a.connectionTopic())
	a.root.Version = version()
	a.root.SetVersionTemplate(currentVersions().String() + "\n")
	a.root.SetFlagErrorFunc(a.flagError)
	return a
}

// run runs a command and returns the exit status.
func run(ctx context.Context, args []string, sys system) int {
	a := newApp(sys)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.settings.mismatch.cancel, a.args = cancel, args
	a.root.SetArgs(args)
	err := a.settings.refuseSecrets(args)
	if err == nil {
		err = a.root.ExecuteContext(ctx)
		if err != nil && !a.began && !errors.Is(err, errSaid) {
			err = refuse("%w", err) // cobra's, about arguments
		}
	}
	if a.client != nil {
		_ = a.client.Close()
	}
	if found := a.settings.mismatch.found(); found != nil {
		err = found
	}
	return a.complain(ctx, args, a.advised(err))
}

// runs returns the function of a command that looks at topics or changes them.
func (a *app) runs(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.begin(cmd); err != nil {
			return err
		}
		err := a.near(cmd.Context(), args, do(cmd.Context(), args))
		a.out.endProgress()
		switch lost := a.out.out.failed; {
		case lost == nil || errors.Is(err, lost):
			return err
		case errors.Is(err, errSaid):
			return lost // it was not said
		default:
			return errors.Join(err, lost)
		}
	}
}

// begin reads the settings.
func (a *app) begin(cmd *cobra.Command) error {
	if a.utc {
		time.Local = time.UTC // of this process, which runs one command
	}
	a.began, a.running = true, cmd
	if err := errors.Join(a.refuseEmpty(cmd), a.settings.resolve(cmd.Flags())); err != nil {
		return err
	}
	a.out = newOutput(a.sys, a.json)
	a.logger = a.settings.log.logger(a.sys.stderr)
	if a.sys.setLogger != nil {
		a.sys.setLogger(a.logger)
	}
	for _, name := range a.settings.unknown() {
		a.logger.Warn("An environment variable is not a setting, ignoring it", "variable", name)
	}
	return nil
}

// given returns whether a flag of the command is set, to an empty text too.
func (a *app) given(flag string) bool { return a.running != nil && a.running.Flags().Changed(flag) }

// family returns a command that only has commands below it.
func (a *app) family(name, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name + " COMMAND", Short: short, Args: unknownCommand, DisableFlagsInUseLine: true, RunE: a.incomplete}
	c.AddCommand(commands...)
	return c
}

// incomplete is run without the name of a command: it prints the help.
func (a *app) incomplete(cmd *cobra.Command, _ []string) error {
	cmd.SetOut(a.sys.stderr)
	a.help(cmd, nil)
	return &refusal{errSaid}
}

// complain prints an error, one cause a line, and returns the exit status.
func (a *app) complain(ctx context.Context, args []string, err error) int {
	refused := errors.Is(err, errRefused) || errors.Is(err, admin.ErrInvalidArgument) || errors.Is(err, admin.ErrInvalidTopic)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSaid) && refused:
		return exitRefused
	case errors.Is(err, errSaid):
		return exitFailed
	}
	name := "redisdelay"
	if c, _, found := a.root.Find(args); found == nil {
		name = c.CommandPath()
	}
	text := err.Error()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && a.settings.mismatch.found() == nil {
		text = "interrupted: " + text
	}
	printed := map[string]bool{"": true} // two settings may have the same fault
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); !printed[line] {
			_, _ = fmt.Fprintf(a.sys.stderr, "%s: %s\n", name, clean(line))
		}
		printed[line] = true
	}
	if refused {
		return exitRefused
	}
	return exitFailed
}

// help prints the help of a command: its own flags, and for relay all settings.
func (a *app) help(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	text := cmd.Long
	if text == "" {
		text = strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
	}
	say("%s\n\nUsage:\n  %s\n", text, cmd.UseLine())
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			say("  %-40s %s\n", sub.CommandPath(), sub.Short)
		}
	}
	if cmd.Example != "" {
		say("\nExample:\n%s\n", cmd.Example)
	}
	own := cmd.LocalFlags()
	switch {
	case cmd == a.relay, cmd == a.ui:
		say("\nSettings:\n")
		a.settings.print(w, cmd.Flags())
		return
	case cmd.Name() == "connection":
		say("\nSettings:\n")
		a.settings.print(w, a.root.PersistentFlags())
		return
	case own.HasAvailableFlags() && cmd != a.root:
		say("\nFlags:\n%s", own.FlagUsages())
	}
	say("\nSettings of the connection, which all commands have: redisdelay help connection\n")
}

// connectionTopic is a topic of help.
func (a *app) connectionTopic() *cobra.Command {
	return &cobra.Command{Use: "connection", Short: "the settings of the connection, which all commands have", Long: `The settings of the connection, which all commands have. Each is a flag, an environment variable, or a
line "name = value" of the configuration file, in this order. Secrets are never flags.`}
}

// jsonFlag declares --json.
func (a *app) jsonFlag(flags *pflag.FlagSet) {
	flags.BoolVar(&a.json, "json", false, "print one JSON object a line")
}
