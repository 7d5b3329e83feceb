package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// prometheusServer is a Prometheus in a process of its own.
type prometheusServer struct {
	cmd *exec.Cmd
	dir string
	url string
}

// startPrometheus starts a Prometheus that scrapes an address twice a second.
func startPrometheus(ctx context.Context, target string) (*prometheusServer, error) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, fmt.Errorf("find prometheus, which apt-get install prometheus installs: %w", err)
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "observed-")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs: [{job_name: redisdelay, static_configs: [{targets: ["%s"]}]}]
`, target)
	p := &prometheusServer{dir: dir, url: "http://" + address}
	p.cmd = exec.CommandContext(ctx, program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address)
	if err = os.WriteFile(config, []byte(text), 0o600); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return p, nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func (p *prometheusServer) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = os.RemoveAll(p.dir)
}

// query returns the answers to a query: the value, and the labels that tell the answers apart.
func (p *prometheusServer) query(ctx context.Context, query string) (answers []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/query?"+url.Values{"query": {query}}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("query %s: %s", query, answer.Error)
	}
	for _, one := range answer.Data.Result {
		answers = append(answers, strings.TrimSpace(fmt.Sprint(one.Value[1], " ", one.Metric["state"], one.Metric["cause"])))
	}
	slices.Sort(answers)
	return answers, nil
}
