package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// composed is a service of deploy/compose.yaml.
type composed struct {
	Image string
	Build struct{ Context, Dockerfile string }
	// Command is that of the image, or arguments of its program.
	Command     []string
	Dir         string `yaml:"working_dir"`
	Environment map[string]string
	Ports       []string
	Volumes     []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
}

// mounted returns the file of this repository that a service has at a path.
func (c composed) mounted(at string) string {
	for _, volume := range c.Volumes {
		if parts := strings.Split(volume, ":"); len(parts) > 1 && parts[1] == at {
			return filepath.Join("deploy", parts[0])
		}
	}
	return ""
}

// decoded reads a YAML file.
func decoded[T any](t *testing.T, file string) (into T) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &into), file)
	return into
}

func composeServices(t *testing.T) map[string]composed {
	t.Helper()
	return decoded[struct{ Services map[string]composed }](t, "deploy/compose.yaml").Services
}

// The services of compose.yaml reach each other by the names and ports that they have there, and
// get files that exist. Only this machine reaches them.
func TestComposeServicesFitTogether(t *testing.T) {
	t.Parallel()
	services := composeServices(t)
	for name, s := range services {
		for _, port := range s.Ports {
			require.Regexp(t, `^127\.0\.0\.1:\d+:\d+$`, port, name)
		}
		for _, volume := range s.Volumes {
			if source, _, _ := strings.Cut(volume, ":"); strings.HasPrefix(source, ".") {
				_, err := os.Stat(filepath.Join("deploy", source))
				require.NoError(t, err, name)
				require.True(t, strings.HasSuffix(volume, ":ro"), "%s may write to %s", name, source)
			}
		}
		if s.Build.Dockerfile != "" {
			require.FileExists(t, filepath.Join("deploy", s.Build.Context, s.Build.Dockerfile), name)
		} else {
			require.Regexp(t, `^docker\.io/.+:v?\d`, s.Image, "the image of %s has no version", name)
		}
	}
	require.Contains(t, strings.Join(services["redis"].Command, " "), "--appendonly yes --maxmemory-policy noeviction")
	require.Equal(t, "redis:6379", services["shop"].Environment["REDIS_ADDR"])
	watching := decoded[struct {
		Rules   []string `yaml:"rule_files"`
		Scrapes []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}](t, services["prometheus"].mounted("/etc/prometheus/prometheus.yml"))
	require.Equal(t, []string{"rules/*.yml"}, watching.Rules)
	for _, rules := range []string{"alerts.yml", "slo.yml"} {
		require.Equal(t, filepath.Join("../../prometheus", rules), services["prometheus"].mounted("/etc/prometheus/rules/"+rules))
	}
	listen := flagOf(t, services["exporter"], "listen")
	require.Equal(t, []string{"exporter" + listen}, watching.Scrapes[0].Static[0].Targets)

	grafana := services["grafana"]
	sources := decoded[struct {
		Datasources []struct{ Type, URL string }
	}](t, grafana.mounted("/etc/grafana/provisioning/datasources/redisdelay.yml"))
	require.Equal(t, []struct{ Type, URL string }{{"prometheus", "http://prometheus:9090"}}, sources.Datasources)
	boards := decoded[struct {
		Providers []struct{ Options struct{ Path string } }
	}](t, grafana.mounted("/etc/grafana/provisioning/dashboards/redisdelay.yml"))
	board := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	require.Equal(t, boards.Providers[0].Options.Path, path.Dir(board))
	text, err := os.ReadFile(grafana.mounted(board))
	require.NoError(t, err)
	require.True(t, json.Valid(text))
}

// The shop of compose.yaml is built and runs, and its program takes orders there. The directories
// of the container are others here.
func TestComposeShopCancelsWhatNobodyPays(t *testing.T) {
	t.Parallel()
	shop := composeServices(t)["shop"]
	require.Equal(t, "/tmp", shop.Dir)
	source, err := filepath.Abs(shop.mounted("/src"))
	require.NoError(t, err)
	dir := t.TempDir()
	server := redistest.Start(t)
	inContainer := func(command ...string) *exec.Cmd {
		for i := range command {
			command[i] = strings.NewReplacer("/src", source, "/tmp/", dir+"/").Replace(command[i])
		}
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "REDIS_ADDR="+server.Addr(), "GOWORK=off")
		return cmd
	}
	serve := inContainer(shop.Command...)
	said, err := serve.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, serve.Start())
	t.Cleanup(func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	})
	require.Eventually(t, func() bool {
		file, err := os.Stat(filepath.Join(dir, "shop.log"))
		return err == nil && file.Size() > 0
	}, patience, 20*time.Millisecond)

	text, err := os.ReadFile("deploy/compose.yaml")
	require.NoError(t, err)
	place := regexp.MustCompile(`docker compose exec shop (/tmp/shop place 17) 30s\n`).FindSubmatch(text)
	require.NotNil(t, place)
	out, err := inContainer(append(strings.Fields(string(place[1])), "10ms")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "17") {
	}
	require.Regexp(t, "17.*cancelled", lines.Text())
}

// flagOf returns a flag of the tool's command that a service runs, which has to be one that exists.
func flagOf(t *testing.T, s composed, name string) string {
	t.Helper()
	a, err := parsed(nil)
	require.NoError(t, err)
	cmd, rest, err := a.root.Find(s.Command)
	require.NoError(t, err)
	require.NotSame(t, a.root, cmd)
	require.NoError(t, cmd.ParseFlags(rest))
	require.Equal(t, "redis:6379", cmd.Flag("redis").Value.String())
	require.Equal(t, "service_healthy", s.DependsOn["redis"].Condition)
	return cmd.Flag(name).Value.String()
}

// The page of compose.yaml starts with the settings there, and asks for its password.
func TestComposePageAsksForItsPassword(t *testing.T) {
	t.Parallel()
	s := composeServices(t)["page"]
	require.Equal(t, ":8080", flagOf(t, s, "listen"))
	require.Equal(t, []string{"127.0.0.1:8080:8080"}, s.Ports)
	require.Equal(t, "ops", s.Environment["REDISDELAY_UI_USER"])
	require.Regexp(t, `^\$\{PAGE_PASSWORD:\?`, s.Environment["REDISDELAY_UI_PASSWORD"])

	args := slices.Clone(s.Command[1:])
	for i := range args {
		args[i] = strings.NewReplacer("redis:6379", "localhost:1", ":8080", "127.0.0.1:0").Replace(args[i])
	}
	_, address := page(t, []string{"REDISDELAY_UI_USER=ops", "REDISDELAY_UI_PASSWORD=secret"}, args...)
	request, err := http.NewRequest(http.MethodGet, address, nil)
	require.NoError(t, err)
	status, _ := loaded(t, request)
	require.Equal(t, http.StatusUnauthorized, status)
	request.SetBasicAuth("ops", "secret")
	status, _ = loaded(t, request)
	require.NotEqual(t, http.StatusUnauthorized, status)
}
