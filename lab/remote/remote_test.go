package remote

import (
	"errors"
	"io"
	"testing"
)

type adder struct{ sum int }

func (a *adder) Add(n int, sum *int) error {
	if n < 0 {
		return errors.New("only upwards")
	}
	a.sum += n
	*sum = a.sum
	return nil
}

func TestCalls(t *testing.T) {
	requests, stdin := io.Pipe()
	stdout, answers := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- Serve(&adder{}, requests, answers)
		answers.Close()
	}()
	c := NewClient(stdin, stdout)
	var sum int
	for _, want := range []int{2, 4} {
		if err := c.Call("Add", 2, &sum); err != nil || sum != want {
			t.Errorf("%d, %v; want %d", sum, err, want)
		}
	}
	if err := c.Call("Add", 3, nil); err != nil {
		t.Errorf("without a reply: %v", err)
	}
	if err := c.Call("Add", -1, &sum); err == nil || err.Error() != "only upwards" {
		t.Errorf("a refusal: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := c.Call("Add", 1, &sum); err == nil {
		t.Error("a closed client calls")
	}
	if err := c.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}
