package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tree is a version of the repository, and its programs.
type tree struct {
	name string // for the report
	dir  string // the root of the repository
	bins string // directory of the programs that are built from it
}

// programs of a tree: tests of two packages, and the program life.
const (
	rootTests  = "root.test"
	queueTests = "queue.test"
	lifeBin    = "life"
)

// thisTree is the tree in which this program runs, with changes that are not committed.
func thisTree(ctx context.Context, dir string) (*tree, error) {
	root, err := git(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	commit, err := git(ctx, "rev-parse", "--short", "HEAD")
	if err != nil {
		return nil, err
	}
	changed, err := git(ctx, "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	t := &tree{name: "this tree, " + commit, dir: root, bins: filepath.Join(dir, "new")}
	if changed != "" {
		t.name += " with changes"
	}
	return t, nil
}

// baseTree checks a commit out into a worktree of its own. remove takes that away.
func baseTree(ctx context.Context, commit, dir string) (t *tree, remove func() error, err error) {
	short, err := git(ctx, "rev-parse", "--short", "--verify", commit+"^{commit}")
	if err != nil {
		return nil, nil, err
	}
	worktree := filepath.Join(dir, "base")
	if _, err := git(ctx, "worktree", "add", "--detach", worktree, short); err != nil {
		return nil, nil, err
	}
	return &tree{name: short, dir: worktree, bins: filepath.Join(dir, "old")}, func() error {
		_, err := git(context.WithoutCancel(ctx), "worktree", "remove", "--force", worktree)
		return err
	}, nil
}

func git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build builds the programs. The source of life is that of the tree here. An overlay shows it to
// the compiler as a package of this tree's module, so nothing is written into the tree, and life is
// linked with what the tree's go.mod requires.
func (t *tree) build(ctx context.Context, here string) error {
	overlay := filepath.Join(filepath.Dir(t.bins), filepath.Base(t.bins)+".json")
	const pkg = "pairs_life"
	text, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(t.dir, pkg, "main.go"): filepath.Join(here, "benchmarks", "pairs", "life", "main.go"),
	}})
	if err == nil {
		err = os.WriteFile(overlay, text, 0o600)
	}
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"test", "-c", "-o", filepath.Join(t.bins, rootTests), "."},
		{"test", "-c", "-o", filepath.Join(t.bins, queueTests), "./internal/queue"},
		{"build", "-overlay", overlay, "-o", filepath.Join(t.bins, lifeBin), "./" + pkg},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = t.dir
		cmd.Env = append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s, in %s: %w\n%s", strings.Join(args, " "), t.name, err, out)
		}
	}
	return nil
}
