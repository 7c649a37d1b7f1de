package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/traffic"
)

// trafficPlan converts a stream or requests to a plan for dcol's traffic programs.
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
	if x.procedure.Proxy != "" {
		client.Proxy = proxyAddress
	}
	var out bytes.Buffer
	p, failed := x.runClient(ctx, "traffic", x.crew.Part(traffic.ClientPart, client), &out)
	if p == nil {
		return failed
	}
	if err := x.writeLog("traffic.json", out.Bytes()); err != nil || failed != nil {
		return errors.Join(failed, err)
	}
	var said traffic.Report
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		return p.Trouble(fmt.Errorf("read its report: %w", err))
	}
	m, err := said.After(x.workload.Skip.Std())
	if err != nil {
		return p.Trouble(err)
	}
	x.result.Bytes, x.result.MeasuredSeconds = m.Bytes, m.Seconds
	x.result.GoodputMbps = float64(m.Bytes) * 8 / 1e6 / m.Seconds
	x.result.LongestStallMS = stats.Milliseconds(m.Stall)
	x.result.Latency = report.NewLatency(m.Latencies)
	return nil
}
