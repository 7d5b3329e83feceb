package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// GitHub runs .ci/run, and the tests with the oldest and the newest Go on each server that is
// supported.
func TestWorkflowTestsEachServerWithOldAndNewGo(t *testing.T) {
	t.Parallel()
	type job struct {
		Container string
		Strategy  struct {
			Matrix struct{ Go, Server []string }
		}
		Services map[string]struct{ Image string }
		Steps    []struct {
			Run string
			Env map[string]string
		}
	}
	jobs := decoded[struct{ Jobs map[string]job }](t, "../../.github/workflows/ci.yml").Jobs

	commands := func(j job) (all []string) {
		for _, step := range j.Steps {
			all = append(all, step.Run)
		}
		return all
	}
	require.Contains(t, commands(jobs["ci"]), ".ci/run")

	servers := jobs["servers"]
	require.Contains(t, commands(servers), "scripts/with-redis.sh go test -timeout 20m ./...")
	require.Equal(t, []string{"redis:6.2", "redis:7.0", "redis:7.4", "redis:8", "valkey/valkey:7.2", "valkey/valkey:8", "valkey/valkey:9"},
		servers.Strategy.Matrix.Server)
	require.Equal(t, "${{ matrix.server }}", servers.Services["server"].Image)
	require.Equal(t, "server:6379", servers.Steps[len(servers.Steps)-1].Env["REDIS_ADDR"])
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	oldest := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))[1]
	versions := servers.Strategy.Matrix.Go
	require.Equal(t, oldest, versions[0])
	require.Greater(t, versions[len(versions)-1], oldest)
	require.Equal(t, "golang:"+versions[len(versions)-1]+"-bookworm", jobs["ci"].Container)
}

// The issue forms are such as GitHub accepts. That of faults asks for what the tool says.
func TestIssueFormsAskForDoctorAndVersions(t *testing.T) {
	t.Parallel()
	type form struct {
		Name, Description string
		Body              []struct {
			Type, ID   string
			Attributes struct {
				Label, Description, Placeholder string
			}
			Validations struct{ Required bool }
		}
	}
	files, err := filepath.Glob("../../.github/ISSUE_TEMPLATE/*.yml")
	require.NoError(t, err)
	require.Greater(t, len(files), 2)
	for _, file := range files {
		if filepath.Base(file) == "config.yml" { // no form
			continue
		}
		f := decoded[form](t, file)
		require.NotEmpty(t, f.Name, file)
		require.NotEmpty(t, f.Description, file)
		ids := map[string]bool{}
		for _, field := range f.Body {
			require.Contains(t, "textarea input dropdown checkboxes", field.Type, file)
			require.NotEmpty(t, field.Attributes.Label, file)
			require.Regexp(t, `^[a-z-]+$`, field.ID, file)
			require.False(t, ids[field.ID], "%s has two fields %s", file, field.ID)
			ids[field.ID] = true
		}
	}

	asked := map[string]string{}
	for _, field := range decoded[form](t, "../../.github/ISSUE_TEMPLATE/bug.yml").Body {
		if field.Validations.Required {
			asked[field.ID] = field.Attributes.Label + "\n" + field.Attributes.Description
		}
	}
	require.Contains(t, asked["doctor"], "`redisdelay doctor --json`")
	for _, command := range []string{"`redisdelay version`", "`go version`", "`redis-cli INFO server`"} {
		require.Contains(t, asked["versions"], command)
	}
	require.Contains(t, asked["versions"], "go-redis")
}

// Dependabot looks at each module.
func TestDependabotLooksAtEachModule(t *testing.T) {
	t.Parallel()
	updates := decoded[struct {
		Updates []struct {
			Ecosystem   string   `yaml:"package-ecosystem"`
			Directories []string `yaml:"directories"`
		}
	}](t, "../../.github/dependabot.yml").Updates
	require.Equal(t, "gomod", updates[0].Ecosystem)
	modules := 0
	for _, pattern := range updates[0].Directories {
		found, err := filepath.Glob(filepath.Join("../..", pattern, "go.mod"))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		modules += len(found)
	}
	all := 0
	require.NoError(t, filepath.WalkDir("../..", func(file string, _ os.DirEntry, err error) error {
		if filepath.Base(file) == "go.mod" {
			all++
		}
		return err
	}))
	require.Equal(t, all, modules)
}
