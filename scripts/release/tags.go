package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commit makes the clone, one commit for all modules, and their tags.
func (r *release) commit() (string, error) {
	if _, err := output(r.scratch, nil, "git", "clone", "-q", r.repository, r.clone); err != nil {
		return "", err
	}
	if err := r.closeChangelog(); err != nil {
		return "", err
	}
	if err := r.require(); err != nil {
		return "", err
	}
	if err := r.tagAll("Release " + r.version); err != nil {
		return "", err
	}
	// The tool's go.sum has the sums of the other modules, which do not depend on it.
	if err := r.sum(); err != nil {
		return "", err
	}
	if err := r.tagAll("Release " + r.version); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d modules are tagged", len(modules)), nil
}

// closeChangelog gives what is unreleased the name of the version.
func (r *release) closeChangelog() error {
	file := filepath.Join(r.clone, "CHANGELOG.md")
	changelog, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, section, err := closed(string(changelog), r.version, time.Now().UTC().Format(time.DateOnly))
	if err != nil {
		return err
	}
	if section == "" && r.named {
		return fmt.Errorf("CHANGELOG.md has nothing under %s", strings.TrimSpace(unreleased))
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// modFile is what the go command tells of a go.mod.
type modFile struct {
	Module  struct{ Path string }
	Require []struct{ Path, Version string }
}

// require has each module of the clone that requires a released one require this version. The
// replaces stay: they are for work in the clone, and the go command follows only those of the main
// module.
func (r *release) require() error {
	return filepath.WalkDir(r.clone, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		text, err := output(filepath.Dir(file), nil, "go", "mod", "edit", "-json", file)
		if err != nil {
			return err
		}
		var mod modFile
		if err := json.Unmarshal([]byte(text), &mod); err != nil {
			return err
		}
		edit := []string{"mod", "edit"}
		for _, required := range mod.Require {
			if slices.ContainsFunc(modules, func(dir string) bool { return r.module(dir) == required.Path }) {
				edit = append(edit, "-require="+required.Path+"@"+r.version)
			}
		}
		if len(edit) == 2 {
			return nil
		}
		_, err = output(filepath.Dir(file), nil, "go", append(edit, file)...)
		return err
	})
}

// sum writes the sums of the modules that the tool requires into its go.sum, where go mod tidy has
// them.
func (r *release) sum() error {
	found, err := r.download("sums", modules[:len(modules)-1])
	if err != nil {
		return err
	}
	required, err := output(filepath.Join(r.clone, tool), nil, "go", "mod", "edit", "-print")
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, m := range found {
		if strings.Contains(required, m.Path+" "+r.version) {
			fmt.Fprintf(&sums, "%s %s %s\n%s %s/go.mod %s\n", m.Path, r.version, m.Sum, m.Path, r.version, m.GoModSum)
		}
	}
	file := filepath.Join(r.clone, tool, "go.sum")
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var before, after string
	for line := range strings.Lines(string(old)) {
		switch {
		case strings.HasPrefix(line, r.path): // of another version
		case line < r.path:
			before += line
		default:
			after += line
		}
	}
	return os.WriteFile(file, []byte(before+sums.String()+after), 0o644)
}

// tagAll commits the changes of the clone, or puts them into the commit of the tags, and moves the
// tags there.
func (r *release) tagAll(message string) error {
	args := []string{"commit", "-q", "-a", "-m", message}
	if _, err := r.git("rev-parse", "-q", "--verify", "refs/tags/"+r.version); err == nil {
		args = append(args, "--amend")
	}
	if _, err := r.git(args...); err != nil {
		return err
	}
	for _, dir := range modules {
		if _, err := r.git("tag", "-f", "-a", "-m", r.module(dir)+" "+r.version, tag(dir, r.version)); err != nil {
			return err
		}
	}
	return nil
}

// git runs git in the clone, as the user of the repository. Machines of CI have none.
func (r *release) git(args ...string) (string, error) {
	user, _ := output(r.repository, nil, "git", "config", "user.name")
	email, _ := output(r.repository, nil, "git", "config", "user.email")
	who := []string{"-c", "user.name=" + cmp.Or(user, "release-check"), "-c", "user.email=" + cmp.Or(email, "release-check@localhost")}
	return output(r.clone, nil, "git", append(who, args...)...)
}

// exists tells whether a repository has a tag.
func exists(repository, tag string) bool {
	_, err := output(repository, nil, "git", "rev-parse", "-q", "--verify", "refs/tags/"+tag)
	return err == nil
}

// lastTag returns the latest release that HEAD has in its history.
func (r *release) lastTag() (last string, err error) {
	tags, err := output(r.repository, nil, "git", "tag", "--merged", "HEAD", "--list", "v*")
	for _, tag := range strings.Fields(tags) {
		if isVersion(tag) && (last == "" || later(tag, last)) {
			last = tag
		}
	}
	return last, err
}

// mayTag returns an error if the repository is not as it will be published.
func (r *release) mayTag() error {
	if !r.named {
		return errors.New("name the version: make release VERSION=v0.1.0")
	}
	changed, err := output(r.repository, nil, "git", "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("there are uncommitted changes:\n%s", changed)
	}
	stale, _ := output(r.repository, nil, "git", "grep", "-n", "-i", "until the first release", "--", "*.md", ":!CONTRIBUTING.md") // fails if there is none
	if stale != "" {
		err = errors.Join(err, fmt.Errorf("documents tell what is so until the first release:\n%s", stale))
	}
	for _, key := range []string{"user.name", "user.email"} {
		if _, e := output(r.repository, nil, "git", "config", key); e != nil {
			err = errors.Join(err, fmt.Errorf("git has no %s", key))
		}
	}
	return err
}

// bring brings the commit and the tags from the clone into the repository, and says how to publish
// them.
func (r *release) bring() error {
	tags := make([]string, len(modules))
	fetch := []string{"fetch", "-q", "--atomic", "--no-tags", r.clone, "HEAD"}
	for i, dir := range modules {
		tags[i] = tag(dir, r.version)
		fetch = append(fetch, "refs/tags/"+tags[i]+":refs/tags/"+tags[i])
	}
	if _, err := output(r.repository, nil, "git", fetch...); err != nil {
		return err
	}
	if _, err := output(r.repository, nil, "git", "merge", "-q", "--ff-only", tags[0]); err != nil {
		return err
	}
	fmt.Printf("release: %s is tagged here. Publish it:\n    git push --atomic origin HEAD %s\n", r.version, strings.Join(tags, " "))
	return nil
}

var versionForm = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

func isVersion(text string) bool { return versionForm.MatchString(text) }

// parsed returns the numbers of a version, and zeros for what is none.
func parsed(version string) (numbers [3]int) {
	if found := versionForm.FindStringSubmatch(version); found != nil {
		for i := range numbers {
			numbers[i], _ = strconv.Atoi(found[i+1])
		}
	}
	return numbers
}

// later tells whether version a comes after b.
func later(a, b string) bool {
	x, y := parsed(a), parsed(b)
	return slices.Compare(x[:], y[:]) > 0
}
