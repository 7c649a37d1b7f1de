package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/detour-collective/dcol/lab/scenario"
)

func iperfServer(w scenario.Workload) []string {
	return []string{"iperf3", "--server", "--port", strconv.Itoa(w.Port)}
}

// iperf measures with iperf3: the goodput is what the receiving end counted,
// from the skip to the end.
func (x *execution) iperf(ctx context.Context) error {
	w := x.workload
	argv := []string{
		"iperf3", "--client", x.target.Addr().String(), "--port", strconv.Itoa(int(x.target.Port())), "--json",
		"--time", strconv.Itoa(int((w.Duration - w.Skip).Seconds())),
	}
	if w.Skip > 0 {
		argv = append(argv, "--omit", strconv.Itoa(int(w.Skip.Seconds())))
	}
	if x.local.IsValid() {
		argv = append(argv, "--bind", x.local.String())
	}
	if w.Kind == scenario.Download {
		argv = append(argv, "--reverse")
	}
	var out buffer
	p, failed := x.runClient(ctx, "iperf3", argv, &out)
	if p == nil {
		return failed
	}
	if err := x.writeLog("iperf3.json", out.Bytes()); err != nil {
		return err
	}
	received, err := parseIperf(out.Bytes())
	if failed != nil {
		return errors.Join(failed, err)
	}
	if err != nil {
		return p.trouble(err)
	}
	x.result.Bytes = received.Bytes
	x.result.MeasuredSeconds = received.Seconds
	x.result.GoodputMbps = received.BitsPerSecond / 1e6
	return nil
}

// iperfSum is the part of iperf3's report that counts.
type iperfSum struct {
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	BitsPerSecond float64 `json:"bits_per_second"`
}

// parseIperf reads the JSON iperf3 prints.
func parseIperf(data []byte) (iperfSum, error) {
	var report struct {
		Error string `json:"error"`
		End   struct {
			Received iperfSum `json:"sum_received"`
		} `json:"end"`
	}
	switch err := json.Unmarshal(data, &report); {
	case err != nil:
		return iperfSum{}, fmt.Errorf("read iperf3's report: %w", err)
	case report.Error != "":
		return iperfSum{}, fmt.Errorf("iperf3 reports: %s", report.Error)
	case report.End.Received.Seconds <= 0:
		return iperfSum{}, errors.New("iperf3 reports nothing received")
	}
	return report.End.Received, nil
}
