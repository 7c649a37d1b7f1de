package traffic

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"
)

// ask sends each request when it is due, or at once if that has passed. It reads the answer and records when
// it was complete.
func ask(ctx context.Context, conn io.ReadWriter, p Plan) ([]time.Duration, error) {
	r := bufio.NewReaderSize(conn, 64<<10)
	request := make([]byte, RequestSize)
	start, err := now()
	if err != nil {
		return nil, err
	}
	done := make([]time.Duration, 0, p.Count)
	for i := range p.Count {
		if err := waitUntil(ctx, start+time.Duration(i)*p.Interval); err != nil {
			return nil, err
		}
		if _, err := conn.Write(request); err != nil {
			return nil, fmt.Errorf("send request %d of %d: %w", i+1, p.Count, err)
		}
		if err := discard(r, p.Size); err != nil {
			return nil, fmt.Errorf("wait for the answer to request %d of %d: %w", i+1, p.Count, err)
		}
		t, err := now()
		if err != nil {
			return nil, err
		}
		done = append(done, t-start)
	}
	return done, nil
}

// answer answers every request.
func answer(conn io.ReadWriter, p Plan) error {
	reply := make([]byte, min(p.Size, 64<<10))
	for i := range p.Count {
		if err := discard(conn, RequestSize); err != nil {
			return fmt.Errorf("wait for request %d of %d: %w", i+1, p.Count, err)
		}
		for left := p.Size; left > 0; left -= len(reply) {
			if _, err := conn.Write(reply[:min(left, len(reply))]); err != nil {
				return fmt.Errorf("answer request %d of %d: %w", i+1, p.Count, err)
			}
		}
	}
	return nil
}
