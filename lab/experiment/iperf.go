package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/detour-collective/dcol/lab/scenario"
)

func iperfServer(w scenario.Workload) []string {
	return []string{"iperf3", "--server", "--json", "--port", strconv.Itoa(w.Port)}
}

// iperf measures with iperf3. The goodput is what the receiver counted in whole intervals, from the skip
// until the sender stops. Data still in queues at that time does not count. iperf3's own sum includes it, and
// can exceed the rate of the slowest link.
func (x *execution) iperf(ctx context.Context) error {
	w := x.workload
	counted := w.Duration - w.Skip
	argv := []string{
		"iperf3", "--client", x.target.Addr().String(), "--port", strconv.Itoa(int(x.target.Port())), "--json",
		"--get-server-output", "--time", strconv.Itoa(int(counted.Seconds())),
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
	var out bytes.Buffer
	p, failed := x.runClient(ctx, "iperf3", argv, &out)
	if p == nil {
		return failed
	}
	if err := x.writeLog("iperf3.json", out.Bytes()); err != nil {
		return err
	}
	received, err := parseIperf(out.Bytes(), w.Kind == scenario.Download, counted.Seconds())
	if failed != nil {
		return errors.Join(failed, err)
	}
	if err != nil {
		return p.Trouble(err)
	}
	x.result.Bytes = received.bytes
	x.result.MeasuredSeconds = received.seconds
	x.result.GoodputMbps = float64(received.bytes) * 8 / received.seconds / 1e6
	x.result.SteadyMbps = received.steady
	x.result.ReceivedMbps = received.rates
	return nil
}

// received is the receiver's measurement.
type received struct {
	bytes   int64
	seconds float64
	steady  float64   // Mbit/s after the first settled seconds; 0 if nothing follows them
	rates   []float64 // Mbit/s in each interval of a second
}

// settled is the part of the measured time in which the start still has an effect. A program receives data
// behind a lost packet only with that packet, so a loss in the skipped second delays data into the measured
// time. In the papers' networks that gives plain TCP a tenth more in the first measured second, in two of
// three runs.
const settled = 3

// iperfReport is the part of the report of one end that is used.
type iperfReport struct {
	Error     string `json:"error"`
	Intervals []struct {
		Sum struct {
			End     float64 `json:"end"` // seconds, not counting what is omitted
			Bytes   int64   `json:"bytes"`
			Omitted bool    `json:"omitted"`
		} `json:"sum"`
	} `json:"intervals"`
}

// late is the time by which iperf3's timers may miss the end of an interval, in seconds.
const late = 0.05

// parseIperf reads the JSON that the client prints. It returns the data that the receiver got in the counted seconds
// after the omitted ones. The receiver is the server, or in a download the client.
func parseIperf(data []byte, download bool, counted float64) (received, error) {
	var report struct {
		iperfReport
		Server iperfReport `json:"server_output_json"`
	}
	switch err := json.Unmarshal(data, &report); {
	case err != nil:
		return received{}, fmt.Errorf("read iperf3's report: %w", err)
	case report.Error != "":
		return received{}, fmt.Errorf("iperf3 reports: %s", report.Error)
	}
	end := report.Server
	if download {
		end = report.iperfReport
	}
	// The length of the first measured interval is a second too long if iperf3 closes the one before it after
	// the end of the skip.
	var r, start received
	for _, i := range end.Intervals {
		if !i.Sum.Omitted && i.Sum.End <= counted+late {
			if length := i.Sum.End - r.seconds; length > late { // ignore the rest after the sender has stopped
				r.rates = append(r.rates, float64(i.Sum.Bytes)*8/1e6/length)
			}
			r.bytes += i.Sum.Bytes
			r.seconds = max(r.seconds, i.Sum.End)
			if i.Sum.End <= settled+late {
				start = r
			}
		}
	}
	if !(r.seconds > 0) || r.bytes <= 0 {
		return received{}, errors.New("iperf3 reports nothing received")
	}
	if r.seconds > start.seconds && start.seconds > settled-late {
		r.steady = float64(r.bytes-start.bytes) * 8 / 1e6 / (r.seconds - start.seconds)
	}
	return r, nil
}
