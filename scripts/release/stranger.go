package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// patience is how long the tool may take to serve its page, and to end.
const patience = 30 * time.Second

// get gets each module from the proxy, as the documents say. Each is alone in a module of the
// stranger, where no other requirement hides what it lacks.
func (r *release) get() (string, error) {
	found, err := r.download("tags", modules)
	if err != nil {
		return "", err
	}
	env, err := r.strangers()
	if err != nil {
		return "", err
	}
	for i, m := range found {
		dir := r.stranger(i)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		if _, err := output(dir, env, "go", "mod", "init", "example.com/stranger"); err != nil {
			return "", err
		}
		if _, err := output(dir, env, "go", "get", m.Path+"@"+m.Version); err != nil {
			return "", err
		}
	}
	// The tool of a clone at the tag has all sums that it needs.
	if _, err := output(filepath.Join(r.clone, tool), append(env, "GOFLAGS=-modcacherw -mod=readonly"), "go", "list", "-deps", "."); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d modules, each by go get", len(found)), nil
}

// stranger returns the directory of the stranger who got the module with that index. The first one
// got the library.
func (r *release) stranger(i int) string {
	return filepath.Join(r.scratch, fmt.Sprintf("stranger%d", i))
}

// known are the packages that README's program uses, by their names there.
var known = map[string]string{
	"context": "context", "time": "time",
	"watermill": "github.com/ThreeDotsLabs/watermill", "message": "github.com/ThreeDotsLabs/watermill/message",
	"redis": "github.com/redis/go-redis/v9",
}

// program returns README's first Go code as a program that compiles, if the code does.
func program(readme, library string) (string, error) {
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(readme)
	if block == nil {
		return "", errors.New("README.md has no Go code")
	}
	text, used := "package main\n\n", block[1]
	if strings.Contains(used, "cancelOrder") { // the reader's own handler
		used += "\nfunc cancelOrder(*message.Message) error { return nil }\n"
	}
	uncommented := regexp.MustCompile(`//.*`).ReplaceAllString(used, "")
	for name, path := range known {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(uncommented) {
			text += fmt.Sprintf("import %s %q\n", name, path)
		}
	}
	return text + fmt.Sprintf("import redisdelay %q\n\n", library) + used + "\nfunc main() {}\n", nil
}

// compileReadme compiles README's program, and the packages of the other modules with it.
func (r *release) compileReadme() (string, error) {
	readme, err := os.ReadFile(filepath.Join(r.clone, "README.md"))
	if err != nil {
		return "", err
	}
	text, err := program(string(readme), r.path)
	if err != nil {
		return "", err
	}
	for _, dir := range modules {
		if dir != "." && dir != tool {
			text = strings.Replace(text, "\nimport ", fmt.Sprintf("\nimport _ %q\nimport ", r.module(dir)), 1)
		}
	}
	dir := r.stranger(0)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o644); err != nil {
		return "", err
	}
	env, err := r.strangers()
	if err != nil {
		return "", err
	}
	if _, err := output(dir, env, "go", "mod", "tidy"); err != nil {
		return "", err
	}
	if _, err := output(dir, env, "go", "build", "-o", os.DevNull, "."); err != nil {
		return "", err
	}
	return "README's program compiles", nil
}

// install installs the tool, and asks it for its version.
func (r *release) install() (string, error) {
	env, err := r.strangers()
	if err != nil {
		return "", err
	}
	if _, err := output(r.scratch, env, "go", "install", r.module(tool)+"@"+r.version); err != nil {
		return "", err
	}
	said, err := output(r.scratch, nil, r.installed(), "version", "--json")
	if err != nil {
		return "", err
	}
	var is struct{ Version string }
	if err := json.Unmarshal([]byte(said), &is); err != nil || is.Version != r.version {
		return "", fmt.Errorf("redisdelay version --json says %s, want version %s", said, r.version)
	}
	return output(r.scratch, nil, r.installed(), "version")
}

func (r *release) installed() string { return filepath.Join(r.scratch, "bin", "redisdelay") }

// doctor has the tool look at a Redis server. Problems of the server are no fault of the tool.
func (r *release) doctor() (string, error) {
	said, err := output(r.scratch, nil, r.installed(), "doctor", "--json", "--redis", r.redis)
	var failed *failure
	if errors.As(err, &failed) && failed.stderr == "" {
		said, err = failed.stdout, nil
	}
	if err != nil {
		return "", err
	}
	problems := 0
	for decoder := json.NewDecoder(strings.NewReader(said)); ; problems++ {
		var problem struct{ Severity, Text string }
		if err := decoder.Decode(&problem); errors.Is(err, io.EOF) {
			return fmt.Sprintf("it looked at a server; problems: %d", problems), nil
		} else if err != nil || problem.Severity == "" || problem.Text == "" {
			return "", fmt.Errorf("redisdelay doctor --json says %s", said)
		}
	}
}

// ui has the tool serve its page with sample traffic, loads that, and ends it as Ctrl-C does.
func (r *release) ui() (said string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.installed(), "ui", "--demo", "--listen", "localhost:0")
	cmd.Dir = r.scratch
	out, in, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	in.Close()
	if err != nil {
		return "", err
	}
	address := ""
	for lines := bufio.NewScanner(out); address == "" && lines.Scan(); {
		said += lines.Text() + "\n"
		address = regexp.MustCompile(`http://\S+/`).FindString(lines.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if address == "" {
		return "", fmt.Errorf("redisdelay ui --demo: %w: %s", errors.Join(cmd.Wait(), errors.New("it names no address")), said)
	}
	page, err := load(ctx, address)
	if err == nil {
		err = cmd.Process.Signal(syscall.SIGINT)
	} else {
		cancel()
	}
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return "", fmt.Errorf("redisdelay ui --demo: %w", err)
	}
	return fmt.Sprintf("its page has %d bytes, and it ends", len(page)), nil
}

// load returns the page at an address, which has to be there, and to be about topics.
func load(ctx context.Context, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(page), "topic")) {
		err = fmt.Errorf("%s answers %s: %s", address, response.Status, page)
	}
	return page, err
}
