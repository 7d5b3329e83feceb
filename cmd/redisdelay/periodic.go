package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/spf13/cobra"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

func (a *app) periodicCommand() *cobra.Command {
	var file string
	var check bool
	c := &cobra.Command{Use: "periodic --file FILE", Short: "publish messages again and again, by the schedules of a file", Args: cobra.NoArgs,
		DisableFlagsInUseLine: true,
		Long: `Publishes messages again and again, by the schedules of a file, until SIGTERM or SIGINT. Any number of processes may
run the same file: each occurrence is published once. After an edit of the file, start the command anew.

The file is YAML or JSON:

  schedules:
    - name: daily-report                 # required
      topic: reports                     # required
      spec: 0 9 * * 1-5                  # required: cron with 5 or 6 fields, @daily, "@every 90m"
      location: Europe/Berlin            # default UTC
      payload: '{"kind":"daily"}'        # or payload_file: FILE, from the directory of this file
      metadata: {max_deliveries: "3"}
      misfire: last                      # of what was missed in an outage: last (default), all or skip
      misfire_within: 24h                # how far back that goes
      jitter: 10m                        # due later by a part of this, the same for each occurrence
      start: 2026-01-01T00:00:00Z        # the first instant that counts
      end: 2027-01-01T00:00:00Z          # the first that does not`,
		Example: "  redisdelay periodic --file schedules.yaml --check\n  redisdelay periodic --file schedules.yaml",
		RunE:    a.runs(func(ctx context.Context, _ []string) error { return a.periodic(ctx, file, check) })}
	c.Flags().StringVar(&file, "file", "", "the `file` with the schedules; required")
	c.Flags().BoolVar(&check, "check", false, "only check the file, without Redis")
	a.jsonFlag(c.Flags())
	return c
}

// checkedFile is the object of the command periodic with --check.
type checkedFile struct {
	File      string `json:"file"`
	Schedules int    `json:"schedules"`
}

func (a *app) periodic(ctx context.Context, file string, check bool) (err error) {
	if file == "" {
		return refuse("--file is missing: the file with the schedules")
	}
	schedules, err := readSchedules(file)
	if err != nil {
		return refuse("%w", err)
	}
	if check {
		a.out.say(checkedFile{file, len(schedules)}, "%s has %s, without a fault.", file, texts.Many(len(schedules), "schedule"))
		return nil
	}
	publisher, err := a.publisher()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close()) }()
	p, err := periodic.New(periodic.Config{Publisher: publisher}, watermill.NewSlogLogger(a.logger))
	if err == nil {
		err = p.Add(schedules...)
	}
	if err != nil {
		return refuse("%w", err)
	}
	a.logger.Info("Running schedules", "version", version(), "file", file, "schedules", len(schedules))
	if err := p.Run(ctx); err != nil {
		return err
	}
	a.logger.Info("Ended")
	return nil
}
