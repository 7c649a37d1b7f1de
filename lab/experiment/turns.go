package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/traffic"
)

// trafficServer returns the command line of the server of streams and requests.
func trafficServer(program string, w scenario.Workload) []string {
	return []string{program, "traffic", "serve", "--port", strconv.Itoa(w.Port)}
}

// trafficPlan returns a stream or requests in the words of their programs.
func trafficPlan(w scenario.Workload) traffic.Plan {
	p := traffic.Plan{Count: w.Turns(), Interval: w.Interval.Std()}
	switch {
	case w.Kind == scenario.Requests:
		p.Kind, p.Size = traffic.Requests, int(w.Size)
	case w.Direction == scenario.Download:
		p.Kind, p.Size = traffic.Download, w.MessageSize()
	default:
		p.Kind, p.Size = traffic.Upload, w.MessageSize()
	}
	return p
}

// turns measures a stream or requests. The goodput counts the data delivered from the skip to the last
// message or answer.
func (x *execution) turns(ctx context.Context) error {
	client := traffic.Client{Plan: trafficPlan(x.workload), At: x.target, From: x.local}
	var out buffer
	p, failed := x.runClient(ctx, "traffic", append([]string{x.lab.opts.Programs.Lab, "traffic"}, client.Args()...), &out)
	if p == nil {
		return failed
	}
	if err := x.writeLog("traffic.json", out.Bytes()); err != nil || failed != nil {
		return errors.Join(failed, err)
	}
	var said traffic.Report
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		return p.trouble(fmt.Errorf("read its report: %w", err))
	}
	m, err := said.After(x.workload.Skip.Std())
	if err != nil {
		return p.trouble(err)
	}
	x.result.Bytes, x.result.MeasuredSeconds = m.Bytes, m.Seconds
	x.result.GoodputMbps = float64(m.Bytes) * 8 / 1e6 / m.Seconds
	x.result.LongestStallMS = milliseconds(m.Stall)
	x.result.Latency = report.NewLatency(m.Latencies)
	return nil
}
