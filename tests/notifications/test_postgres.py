"""The same work on PostgreSQL: one of many workers gets a message, and two who tell the same tell it once."""

import threading

from sqlmodel import Session

from app.pipeline.work import delivery_queue
from app.settings import Settings
from app.storage.database import make_engine, transaction
from tests.notifications.receiving import Receiver
from tests.notifications.sent import deliveries, later, listen, put_trial, states, work_off


def test_one_worker_gets_it_and_what_is_told_twice_is_there_once(postgres_url: str, receiver: Receiver) -> None:
    settings = Settings(database_url=postgres_url)
    engine = make_engine(settings)
    try:
        receiver_id = listen(engine, receiver.address)
        with transaction(engine) as session:
            assert put_trial(session, receiver_id)
            assert not put_trial(session, receiver_id)
            delivery_queue.mark_due(session)
        number, taken = deliveries(engine)[0].id or 0, list[int]()
        together = threading.Barrier(4)

        def take() -> None:
            together.wait()
            with transaction(engine) as session:
                if _claimed(session, number):
                    taken.append(number)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert taken == [number]
        later(engine)  # its worker died
        with transaction(engine) as session:
            assert delivery_queue.mark_due(session) == [number]
        with transaction(engine) as session:
            delivery_queue.void_leases(session)
        assert work_off(engine, settings) == [True]
        assert states(engine) == [("test", "delivered", 2)]
    finally:
        engine.dispose()


def _claimed(session: Session, number: int) -> bool:
    return delivery_queue.claim(session, number) is not None
