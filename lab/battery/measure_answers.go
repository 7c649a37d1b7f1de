package battery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/probe"
	"github.com/detour-collective/dcol/lab/crew"
)

// The first path is up and down in turns. Each turn lasts for a time between these bounds.
const (
	leastUp, mostUp     = 1500 * time.Millisecond, 4 * time.Second
	leastDown, mostDown = 800 * time.Millisecond, 2500 * time.Millisecond
)

// Several assistants talk at a time. Together they need a hundredth of the mobile network's rate.
const (
	assistants     = 3
	assistantStart = 1100 * time.Millisecond
)

// together calls a function n times at the same time, with numbers from 0 on.
func together(n int, do func(int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = do(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// answers measures the delays of a voice assistant's replies by `dcol probe`, while the client's first path fails now and
// then. The server answers as the kernel schedules, or where its client was heard last; or the client withdraws the
// address that has failed.
func answers(ctx context.Context, a *attempt) (v values, err error) {
	if err := a.alwaysMPTCP(); err != nil {
		return nil, err
	}
	serve := []string{a.Programs.DCol, "probe", "serve"}
	if a.variant.mode == "latest" {
		if err := a.Host(serverHost).Sysctl("net.mptcp.pm_type", "1"); err != nil {
			return nil, err
		}
		serve = append(serve, "--answer-on-latest")
	}
	if err := a.setUp(ctx, manage{}); err != nil {
		return nil, err
	}
	server, err := a.Start(ctx, serverHost, "probe", serve...)
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	if err := server.AwaitOutput(ctx, startLimit, "answering probe traffic"); err != nil {
		return nil, err
	}
	failing, stop := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- a.comeAndGo(failing) }()
	at := net.JoinHostPort(a.serverAddr(1).String(), strconv.Itoa(probe.Port))
	file := filepath.Join(a.Logs, "answers.jsonl")
	runErr := together(assistants, func(i int) error {
		// They begin one after the other, so that a failure meets them at different moments.
		if err := crew.Pause(ctx, time.Duration(i)*assistantStart); err != nil {
			return err
		}
		_, err := a.DCol(ctx, clientHost, "probe", "run", at, string(a.variant.voice), "--over", "mptcp", "--source", a.clientAddr(1).String(),
			"--rounds", strconv.Itoa((a.lengths.rounds+assistants-1)/assistants), "--pause", "500ms", "--append", file, "--quiet")
		return err
	})
	stop()
	err = <-failed
	a.measured()
	out, summaryErr := a.DCol(ctx, clientHost, "probe", "report", "--json", file)
	if summaryErr != nil {
		return nil, errors.Join(runErr, err, summaryErr)
	}
	return readSummary(out, err)
}

// alwaysMPTCP has connections that begin while the first path is down wait for it. By default, the kernel makes them plain TCP, and
// then all others for an hour (docs/kernel-behaviour.md), so that the scheduler would not be measured. Older kernels lack the sysctls.
func (a *attempt) alwaysMPTCP() error {
	for key, value := range map[string]string{"net.mptcp.blackhole_timeout": "0", "net.mptcp.syn_retrans_before_tcp_fallback": "100"} {
		if err := a.Host(clientHost).Sysctl(key, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readSummary returns the delays of dcol.probe-summary/1.
func readSummary(out []byte, failed error) (values, error) {
	var summary struct {
		Series []struct {
			Made   int                `json:"exchanges"`
			Failed int                `json:"failed"`
			Plain  int                `json:"fell_back"`
			Values map[string]float64 `json:"values"`
			Paths  map[string]int     `json:"reply_paths"`
		}
	}
	if err := json.Unmarshal(out, &summary); err != nil {
		return nil, fmt.Errorf("read the summary: %w", err)
	}
	if len(summary.Series) != 1 {
		return nil, fmt.Errorf("the summary has %d series, not one", len(summary.Series))
	}
	one := summary.Series[0]
	v := values{"failed": float64(one.Failed), "plain": 100 * float64(one.Plain) / float64(max(one.Made, 1))}
	for _, name := range []string{"p50", "p75", "p90", "max", "count"} {
		v[name] = one.Values[name]
	}
	replies := 0
	for path, n := range one.Paths {
		if replies += n; path == probe.Direct {
			v["direct"] = float64(n)
		}
	}
	v["direct"] = 100 * v["direct"] / float64(max(replies, 1))
	return v, failed
}

// comeAndGo has the first path fail and return until ctx ends.
func (a *attempt) comeAndGo(ctx context.Context) error {
	random := rand.New(rand.NewPCG(1, 2)) // the same failures for all
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}
	wait := func(least, most time.Duration) (ended bool) {
		_ = crew.Pause(ctx, between(least, most))
		return ctx.Err() != nil
	}
	for !wait(leastUp, mostUp) {
		if err := a.LinkDown(pathLink(1), true); err != nil {
			return err
		}
		if a.variant.mode == "withdraw" {
			// The initial subflow's address has id 0. It may be gone already.
			_, _ = a.Run(ctx, clientHost, "ip", "mptcp", "endpoint", "delete", "id", "0", a.clientAddr(1).String())
		}
		_ = wait(leastDown, mostDown)
		if err := a.LinkDown(pathLink(1), false); err != nil {
			return err
		}
	}
	return nil
}
